#include "rope_table.h"

namespace draftproof {
namespace {

constexpr double kTurn = 6.283185307179586476925 / 18446744073709551616.0;  // 2 pi / 2^64

// Horner in x^2 with 1/n!, written as exact quotients of small integers.
double sin_small(double x) {
  const double z = x * x;
  double p = -1.0 / 1307674368000.0;
  p = p * z + 1.0 / 6227020800.0;
  p = p * z - 1.0 / 39916800.0;
  p = p * z + 1.0 / 362880.0;
  p = p * z - 1.0 / 5040.0;
  p = p * z + 1.0 / 120.0;
  p = p * z - 1.0 / 6.0;
  return x + x * (z * p);
}

double cos_small(double x) {
  const double z = x * x;
  double p = 1.0 / 20922789888000.0;
  p = p * z - 1.0 / 87178291200.0;
  p = p * z + 1.0 / 479001600.0;
  p = p * z - 1.0 / 3628800.0;
  p = p * z + 1.0 / 40320.0;
  p = p * z - 1.0 / 720.0;
  p = p * z + 1.0 / 24.0;
  p = p * z - 0.5;
  return 1.0 + z * p;
}

}  // namespace

void rope_cos_sin(uint64_t turns, int64_t position, float* cos, float* sin, double magnitude) {
  const uint64_t phase = turns * static_cast<uint64_t>(position);
  // The nearest quarter turn, and what is left of the phase: -1/8 .. 1/8 of a turn.
  const uint64_t quarter = (phase + (uint64_t{1} << 61)) >> 62;
  const auto rest = static_cast<int64_t>(phase - (quarter << 62));
  const double x = static_cast<double>(rest) * kTurn;
  const double s = sin_small(x) * magnitude, c = cos_small(x) * magnitude;
  switch (quarter) {
    case 0:
      *cos = static_cast<float>(c), *sin = static_cast<float>(s);
      break;
    case 1:
      *cos = static_cast<float>(-s), *sin = static_cast<float>(c);
      break;
    case 2:
      *cos = static_cast<float>(-c), *sin = static_cast<float>(-s);
      break;
    default:
      *cos = static_cast<float>(s), *sin = static_cast<float>(-c);
      break;
  }
}

}  // namespace draftproof
