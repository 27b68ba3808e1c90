// The amx row of the dispatch table.
#include "simd/amx.h"

#if defined(__FAST_MATH__)
#error "Draftproof can't be built with -ffast-math: its bits are its contract"
#endif

namespace draftproof {

const Kernels& amx_kernels() {
  static const Kernels table = make_tile_kernels<HardwareTiles>("amx");
  return table;
}

}  // namespace draftproof
