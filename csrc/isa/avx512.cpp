// The avx512 row of the dispatch table.
#include "ops/table.h"
#include "simd/avx512_products.h"

#if defined(__FAST_MATH__)
#error "Draftproof can't be built with -ffast-math: its bits are its contract"
#endif

namespace draftproof {

const Kernels& avx512_kernels() {
  static constexpr Kernels kTable = make_kernels<Avx512Products>();
  return kTable;
}

}  // namespace draftproof
