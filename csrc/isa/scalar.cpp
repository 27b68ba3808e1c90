// The scalar row of the dispatch table.
#define DRAFTPROOF_SCALAR_ROW
#include "simd/scalar.h"

#include "ops/table.h"

#if defined(__FAST_MATH__)
#error "Draftproof can't be built with -ffast-math: its bits are its contract"
#endif

namespace draftproof {

const Kernels& scalar_kernels() {
  static constexpr Kernels kTable = make_kernels<Scalar>();
  return kTable;
}

}  // namespace draftproof
