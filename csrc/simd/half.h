// float16 and bfloat16 to and from float32 in plain integer code: exact widening, one rounding to
// nearest even when narrowing, no dependence on the floating-point environment. And MXFP4's scale.
#pragma once

#include <cstdint>
#include <cstring>

namespace draftproof {

// 2^(e - 128), denormal for e = 0 and 1.
inline float exponent_to_float(uint8_t e) {
  const uint32_t bits = e < 2 ? uint32_t{0x00200000} << e : (static_cast<uint32_t>(e) - 1) << 23;
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}

inline float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  const uint32_t exponent = (h >> 10) & 31;
  uint32_t mantissa = h & 0x3ff;
  uint32_t bits;
  if (exponent == 31) {
    bits = sign | 0x7f800000 | (mantissa << 13);
  } else if (exponent != 0) {
    bits = sign | ((exponent + 112) << 23) | (mantissa << 13);
  } else if (mantissa == 0) {
    bits = sign;
  } else {  // a denormal half is a normal float
    uint32_t e = 113;
    while ((mantissa & 0x400) == 0) {
      mantissa <<= 1;
      --e;
    }
    bits = sign | (e << 23) | ((mantissa & 0x3ff) << 13);
  }
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}

inline uint16_t float_to_half(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const uint32_t sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);   // NaN
  if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // 65520 and above
  if (magnitude >= 0x38800000) {  // normal: rebias, then round the 13 dropped bits to nearest even
    const uint32_t rebased = magnitude - 0x38000000;
    return static_cast<uint16_t>(sign | ((rebased + 0xfff + ((rebased >> 13) & 1)) >> 13));
  }
  if (magnitude < 0x33000000) return static_cast<uint16_t>(sign);  // below half of the smallest
  const int shift = 126 - static_cast<int>(magnitude >> 23);       // denormal: 14 .. 24
  const uint32_t mantissa = (magnitude & 0x7fffff) | 0x800000;
  const uint32_t dropped = mantissa & ((1u << shift) - 1), middle = 1u << (shift - 1);
  uint32_t kept = mantissa >> shift;
  if (dropped > middle || (dropped == middle && (kept & 1))) ++kept;
  return static_cast<uint16_t>(sign | kept);
}

inline float bfloat_to_float(uint16_t h) {
  const uint32_t bits = static_cast<uint32_t>(h) << 16;
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}

// The integer rule of every ISA: the hardware conversions disagree about denormals.
inline uint16_t float_to_bfloat(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace draftproof
