// The amx row in forms that its test can run.
#pragma once

#include "kernels.h"

namespace draftproof::test {

// On emulated tiles; with the tile products from nine rows on as in the product, or from one row
// on.
const Kernels& emulated_amx(bool every_row);

// On the instructions, from one row on.
const Kernels& hardware_amx_every_row();

// What the emulated tiles have counted so far.
uint64_t emulated_products();
uint64_t emulated_faults();

}  // namespace draftproof::test
