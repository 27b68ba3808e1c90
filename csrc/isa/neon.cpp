// The neon row of the dispatch table.
#include "simd/neon.h"

#include "ops/table.h"

#if defined(__FAST_MATH__)
#error "Draftproof can't be built with -ffast-math: its bits are its contract"
#endif

namespace draftproof {

const Kernels& neon_kernels() {
  static constexpr Kernels kTable = make_kernels<Neon>();
  return kTable;
}

}  // namespace draftproof
