// Owns: the fused multiply-add of the specification, written with ordinary double arithmetic.
// Doesn't know: which CPU runs it. Same bits as a hardware fma or a correct std::fma, without
// -mfma and without a call into the C library. `static` on purpose: this header is included by
// files compiled with different instruction sets, and no such copy may serve another file.
#pragma once

#include <bit>
#include <cstdint>

namespace draftproof {

// a * b + c rounded once to float32 (nearest even), for every input, denormals included. The
// bits of a NaN result are not specified. Needs the default floating-point environment (no FTZ,
// no DAZ), and -ffp-contract=off.
static inline float exact_fma(float a, float b, float c) {
  const double p = static_cast<double>(a) * static_cast<double>(b);  // exact: 48 bits
  const double addend = static_cast<double>(c);
  const double s = p + addend;
  const uint64_t bits = std::bit_cast<uint64_t>(s);
  // Rounding twice, to double and then to float, goes wrong only if the double is halfway between
  // two floats, because every such midpoint is a double and rounding keeps the order. For normal
  // floats halfway means that the low 29 bits are 1000...0.
  const bool tie = (bits & 0x1fffffffu) == 0x10000000u;
  const bool denormal = ((bits >> 52) & 0x7ff) < 1023 - 126;
  if (!(tie || denormal)) return static_cast<float>(s);
  // Rounding to odd keeps what the double lost: e is the exact error of the sum (TwoSum).
  const double c_part = s - p;
  const double e = (p - (s - c_part)) + (addend - c_part);
  if (e == 0.0 || (bits & 1u) != 0) return static_cast<float>(s);
  const bool away_from_zero = (e > 0.0) == (s > 0.0);  // s is not 0 here: then e would be 0
  return static_cast<float>(std::bit_cast<double>(away_from_zero ? bits + 1 : bits - 1));
}

}  // namespace draftproof
