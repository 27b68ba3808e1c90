// Owns: the project's natural logarithm, arithmetic version 1, for logprobs. Doesn't know: vectors
// or libm. One float32 operation per step, rounded to nearest even; "fma" rounds once.
//
//   0. NaN or x < 0: NaN. x == 0: -inf. x == +inf: +inf.
//   1. k = 0; x denormal (x < 2^-126): x = x * 2^23, k = -23                        (exact)
//   2. e = (int32(bits(x)) - kLogSqrtHalfBits) >> 23 (arithmetic shift);
//      m = the float whose bits are bits(x) - (e << 23): sqrt(1/2) <= m < sqrt(2);
//      n = float(e + k)
//   3. f = m - 1 (exact); f2 = f * f
//   4. p = kLogC[0]; p = fma(p, f, kLogC[1]); ... ; p = fma(p, f, kLogC[7])
//   5. y = (f * f2) * p; y = fma(n, kLn2Lo, y); y = fma(-0.5f, f2, y)
//   6. s = f + y; result = fma(n, kLn2Hi, s)
//
// log(1) is exactly +0. The largest error found is 0.86 ulp (every float in 1/8 .. 8, every
// seventh elsewhere).
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "exact_fma.h"
#include "exp_spec.h"  // kLn2Hi, kLn2Lo

namespace draftproof {

constexpr int32_t kLogSqrtHalfBits = 0x3f3504f3;  // bits of sqrt(1/2)

// (log(1 + f) - f + f^2 / 2) / f^3, highest power first: minimax for the relative error of the
// logarithm on sqrt(1/2) - 1 <= f <= sqrt(2) - 1 (Remez exchange, rounded to float32), 0.1 * 2^-24.
constexpr int kLogDegree = 7;
constexpr float kLogC[kLogDegree + 1] = {-0x1.38c1aep-4f, 0x1.05649ap-3f,  -0x1.0d875ap-3f,
                                         0x1.22d90ap-3f,  -0x1.5471f6p-3f, 0x1.99a012p-3f,
                                         -0x1.000228p-2f, 0x1.555554p-2f};

static inline float log_f32(float x) {
  if (!(x >= 0.0f)) return std::numeric_limits<float>::quiet_NaN();
  if (x == 0.0f) return -std::numeric_limits<float>::infinity();
  if (x > std::numeric_limits<float>::max()) return x;
  int32_t k = 0;
  if (x < 0x1p-126f) {
    x = x * 0x1p23f;
    k = -23;
  }
  const int32_t bits = std::bit_cast<int32_t>(x);
  const int32_t e = (bits - kLogSqrtHalfBits) >> 23;  // C++20: arithmetic shift
  const float m = std::bit_cast<float>(bits - e * (1 << 23));
  const float n = static_cast<float>(e + k);
  const float f = m - 1.0f;
  const float f2 = f * f;
  float p = kLogC[0];
  for (int i = 1; i <= kLogDegree; ++i) p = exact_fma(p, f, kLogC[i]);
  const float f3 = f * f2;
  float y = f3 * p;
  y = exact_fma(n, kLn2Lo, y);
  y = exact_fma(-0.5f, f2, y);
  const float s = f + y;
  return exact_fma(n, kLn2Hi, s);
}

}  // namespace draftproof
