// Compiled like the amx row: nothing here may run on a machine without AVX-512.
#include "amx_rows.h"

#include "emulated_tiles.h"
#include "simd/amx.h"

namespace draftproof::test {

static_assert(kLowSum == 0 && kHighSum == 1 && kActivations == 2 && kWeights == 3);

const Kernels& emulated_amx(bool every_row) {
  static const Kernels product = make_tile_kernels<EmulatedTiles>("amx, emulated");
  static const Kernels every = make_tile_kernels<EmulatedTiles, 1>("amx, emulated, every row");
  return every_row ? every : product;
}

const Kernels& hardware_amx_every_row() {
  static const Kernels every = make_tile_kernels<HardwareTiles, 1>("amx, every row");
  return every;
}

uint64_t emulated_products() { return EmulatedTiles::file.products; }
uint64_t emulated_faults() { return EmulatedTiles::file.faults; }

}  // namespace draftproof::test
