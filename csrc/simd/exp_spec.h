// Owns: the project's exp, arithmetic version 1: constants, order of operations, and the scalar
// reference. Doesn't know: vectors; every SIMD version repeats these steps with these constants
// and must give the same bits. Changing anything here changes the arithmetic version.
//
// Every step is one float32 operation rounded to nearest even; "fma" rounds once; "*" and "+" on
// the same line are never contracted.
//
//   0. x < kExpLo (also -inf): the result is +0; nothing below is used.
//   1. x > kExpHi: x = kExpHi                         (compare and select)
//   2. t = x * kLog2e; t = t + kExpMagic; n = t - kExpMagic
//        two roundings, not an fma. n is the product rounded half to even to an integer, as
//        roundps / cvtps2dq / frintn / fcvtns under nearest even. -100 <= n <= 127.
//   3. r = fma(n, -kLn2Hi, x); r = fma(n, -kLn2Lo, r)           (|r| <= 0.3466)
//   4. p = kExpC[0]; p = fma(p, r, kExpC[1]); ... ; p = fma(p, r, kExpC[4])
//   5. y = fma(p, r * r, r)                                     (r * r is rounded)
//   6. y = y + 1.0f                                             (y in 0.70 .. 1.42)
//   7. result = the float whose bits are bits(y) + (int32(n) << 23): always normal and finite.
//
// exp(+-0) is exactly 1. The largest error on [-69, 88] is 1.009 ulp (every float with
// |x| >= 2^-29 was tried). The function is not claimed to be monotone in the last bit. A NaN is
// outside the domain; the scalar reference returns it.
#pragma once

#include <bit>
#include <cstdint>

#include "exact_fma.h"

namespace draftproof {

constexpr float kExpHi = 88.0f;
constexpr float kExpLo = -69.0f;
constexpr float kLog2e = 1.44269504088896341f;        // 0x1.715476p+0
constexpr float kLn2Hi = 0.693145751953125f;          // 0x1.62e4p-1: n * kLn2Hi is exact
constexpr float kLn2Lo = 1.42860682030941723212e-6f;  // ln 2 - kLn2Hi
constexpr float kExpMagic = 12582912.0f;              // 1.5 * 2^23

// (exp(r) - 1 - r) / r^2, highest power first: minimax for the relative error of exp on
// |r| <= 0.3466 (Remez exchange, rounded to float32), 1.6e-9 = 0.03 ulp.
constexpr int kExpDegree = 4;
constexpr float kExpC[kExpDegree + 1] = {0x1.6a241ap-10f, 0x1.1239f2p-7f, 0x1.5558f2p-5f,
                                         0x1.555492p-3f, 0x1.fffffcp-2f};

static inline float exp_f32(float x) {
  if (x < kExpLo) return 0.0f;
  if (x > kExpHi) x = kExpHi;
  if (x != x) return x;
  float t = x * kLog2e;
  t = t + kExpMagic;
  const float n = t - kExpMagic;
  float r = exact_fma(n, -kLn2Hi, x);
  r = exact_fma(n, -kLn2Lo, r);
  float p = kExpC[0];
  for (int i = 1; i <= kExpDegree; ++i) p = exact_fma(p, r, kExpC[i]);
  const float r2 = r * r;
  float y = exact_fma(p, r2, r);
  y = y + 1.0f;
  const uint32_t shift = static_cast<uint32_t>(static_cast<int32_t>(n)) << 23;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(y) + shift);
}

}  // namespace draftproof
