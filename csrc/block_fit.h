// The scale (and min) with which a block of small integers comes nearest to a block of floats, in
// the sense of weighted least squares. Lanes are blocks: eight blocks of N floats are fitted side
// by side and no lane sees another, so any vector width gives the same bits; sums run over a block
// in ascending order. No libm, no contraction.
#pragma once

namespace draftproof::fit {

// The vector extension of GCC and Clang: lane by lane, in whatever registers there are.
constexpr int kLanes8 = 8;
typedef float V __attribute__((vector_size(kLanes8 * sizeof(float))));

inline V all(float x) { return V{x, x, x, x, x, x, x, x}; }
inline V smaller(V a, V b) { return b < a ? b : a; }
inline V larger(V a, V b) { return a < b ? b : a; }
inline V magnitude(V x) { return x < 0.0f ? -x : x; }
// To the nearest integer, ties to even, for |x| < 2^22.
inline V nearest(V x) { return (x + 12582912.0f) - 12582912.0f; }
inline V level(V x, V lo, V hi) { return nearest(smaller(larger(x, lo), hi)); }

constexpr float kTiny = 1e-30f;  // a block that spans less counts as constant
constexpr float kHuge = 3e38f;

// 1 / x, 0 where x is next to nothing.
inline V inverse_of(V x) {
  const auto any = magnitude(x) > kTiny;
  return any ? 1.0f / (any ? x : all(1)) : all(0);
}

// x is about scale * q + base with q in 0 .. top and base <= 0.
struct Affine {
  V scale, base, error;
};

// What every candidate needs of x and w: sums over the block.
struct Sums {
  V w, wx, wxx;
};

// One round: q out of (x - origin) * inverse, then the best scale and base for these q; kept in
// `best` where the weighted error is lower.
template <int N>
void improve_affine(const V (&x)[N], const V (&w)[N], const Sums& sums, float top, V origin,
                    V inverse, Affine& best) {
  V swq = all(0), swqq = all(0), swxq = all(0);
  for (int i = 0; i < N; ++i) {
    const V q = level((x[i] - origin) * inverse, all(0), all(top));
    const V wq = w[i] * q;
    swq += wq;
    swqq += wq * q;
    swxq += wq * x[i];
  }
  const V determinant = sums.w * swqq - swq * swq;
  const auto sound = determinant > 0.0f;
  const V divisor = sound ? determinant : all(1);
  V scale = (sums.w * swxq - sums.wx * swq) / divisor;
  V base = (swqq * sums.wx - swq * swxq) / divisor;
  const auto above = base > 0.0f;
  base = above ? all(0) : base;
  scale = above ? swxq / (sound ? swqq : all(1)) : scale;
  // At the optimum the error is what the fit leaves of sum w x^2.
  const V error = sums.wxx - scale * swxq - base * sums.wx;
  const auto better = sound & (scale > 0.0f) & (error < best.error);
  best.scale = better ? scale : best.scale;
  best.base = better ? base : best.base;
  best.error = better ? error : best.error;
}

template <int N>
Affine fit_affine(const V (&x)[N], const V (&w)[N], float top) {
  V lo = all(0), hi = x[0];
  Sums sums{all(0), all(0), all(0)};
  for (int i = 0; i < N; ++i) {
    lo = smaller(lo, x[i]);
    hi = larger(hi, x[i]);
    const V wx = w[i] * x[i];
    sums.w += w[i];
    sums.wx += wx;
    sums.wxx += wx * x[i];
  }
  const V range = hi - lo, per_level = inverse_of(range);
  const auto flat = !(range > kTiny);
  Affine best{flat ? all(0) : range / top, lo, flat ? all(0) : all(kHuge)};
  // Ranges from one level too wide to one and a half too narrow.
  for (int candidate = -5; candidate <= 8; ++candidate)
    improve_affine(x, w, sums, top, lo, (top + static_cast<float>(candidate) * 0.2f) * per_level,
                   best);
  for (int round = 0; round < 3; ++round)  // from the best fit to its own q, and on
    improve_affine(x, w, sums, top, best.base, inverse_of(best.scale), best);
  return best;
}

// The scale with which x is about scale * q, q in -half .. half - 1; 0 for a block of zeros.
template <int N>
V fit_symmetric(const V (&x)[N], const V (&w)[N], float half) {
  V extreme = all(0), gain = all(0), scale = all(0);
  for (int i = 0; i < N; ++i) extreme = magnitude(x[i]) > magnitude(extreme) ? x[i] : extreme;
  const V per_level = -inverse_of(extreme);  // the side with one level more takes the extreme
  for (int candidate = -8; candidate <= 8; ++candidate) {
    const V inverse = (half + static_cast<float>(candidate) * 0.2f) * per_level;
    V swqq = all(0), swxq = all(0);
    for (int i = 0; i < N; ++i) {
      const V q = level(x[i] * inverse, all(-half), all(half - 1));
      const V wq = w[i] * q;
      swxq += wq * x[i];
      swqq += wq * q;
    }
    const auto any = swqq > 0.0f;
    const V fitted = swxq / (any ? swqq : all(1)), saved = fitted * swxq;
    const auto better = any & (saved > gain);
    gain = better ? saved : gain;
    scale = better ? fitted : scale;
  }
  return scale;
}

// Weighted error of x against scale * q + base with the nearest q in lo .. hi.
template <int N>
V error_of(const V (&x)[N], const V (&w)[N], V scale, V base, float lo, float hi) {
  const V inverse = inverse_of(scale);
  V error = all(0);
  for (int i = 0; i < N; ++i) {
    const V q = level((x[i] - base) * inverse, all(lo), all(hi));
    const V miss = x[i] - (scale * q + base);
    error += w[i] * miss * miss;
  }
  return error;
}

}  // namespace draftproof::fit
