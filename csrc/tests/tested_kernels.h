// The rows that the kernel test compares: those of the machine, and where it can, forms of them in
// which the quick integer products serve every number of rows.
#pragma once

#include <vector>

#include "kernels.h"

namespace draftproof::test {

const std::vector<const Kernels*>& tested_kernels();

// neon_i8mm with products of two rows also for a single one. Needs i8mm. (For amx: amx_rows.h.)
const Kernels& i8mm_every_row();

}  // namespace draftproof::test
