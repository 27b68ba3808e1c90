#include "interpolate.h"

#include "fp_env.h"

namespace draftproof {

void mix_rows(const float* table, int64_t width, const int32_t* indices, const float* weights,
              int64_t rows, float* out, int64_t out_stride) {
  const FpGuard guard;
  for (int64_t r = 0; r < rows; ++r, out += out_stride, indices += 4, weights += 4) {
    const float *a = table + indices[0] * width, *b = table + indices[1] * width,
                *c = table + indices[2] * width, *d = table + indices[3] * width;
    for (int64_t i = 0; i < width; ++i) {
      const float ab = weights[0] * a[i] + weights[1] * b[i];
      const float abc = ab + weights[2] * c[i];
      out[i] = abc + weights[3] * d[i];
    }
  }
}

}  // namespace draftproof
