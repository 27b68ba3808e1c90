// The neon_i8mm row of the dispatch table.
#include "simd/neon_i8mm.h"

#include "ops/table.h"

#if defined(__FAST_MATH__)
#error "Draftproof can't be built with -ffast-math: its bits are its contract"
#endif

namespace draftproof {

const Kernels& neon_i8mm_kernels() {
  static constexpr Kernels kTable = make_kernels<NeonI8mm>();
  return kTable;
}

}  // namespace draftproof
