// cos and sin of a rotary position, without libm: the same bits on every machine.
#pragma once

#include <cstdint>

namespace draftproof {

// cos and sin of 2 pi * frac(position * turns / 2^64), each rounded once to float32. turns =
// round(2^64 * inv_freq / 2 pi), so position * turns modulo 2^64 is the exact phase of the rounded
// frequency. Plain double polynomials (Taylor, degree 15 and 16, |x| <= pi/4: truncated below
// 1e-16), times `magnitude` before they are rounded.
void rope_cos_sin(uint64_t turns, int64_t position, float* cos, float* sin, double magnitude = 1);

}  // namespace draftproof
