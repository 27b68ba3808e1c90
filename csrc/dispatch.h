// Which rows of the dispatch table this CPU can run. Looks at the CPU once; knows no kernel.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "kernels.h"

namespace draftproof {

// Rows that run here, slowest first. The first is always "scalar".
const std::vector<const Kernels*>& available_kernels();

// A row by name ("" = the last of available_kernels); throws std::invalid_argument with the
// choices.
const Kernels& kernels_named(const std::string& name);

// Names and presence of the features that decide, for people.
std::vector<std::pair<std::string, bool>> cpu_features();

}  // namespace draftproof
