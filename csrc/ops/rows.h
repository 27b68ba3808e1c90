// Operations on one row: norm, rotation, SwiGLU, quantization of activations. Written once over the
// shim; the sixteen virtual lanes are the shim's lanes.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels.h"
#include "ops/exp.h"

namespace draftproof {
namespace {

template <class S>
void rms_norm(const float* x, const float* weight, int n, int groups, float eps, float* out) {
  using F = typename S::F;
  for (int g = 0; g < groups; ++g, x += n, out += n) {
    F lanes = S::zero();
    int i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      const F v = S::load(x + i);
      lanes = S::fma(v, v, lanes);
    }
    if (i < n) {
      const F v = S::load_n(x + i, n - i);
      lanes = S::fma(v, v, lanes);
    }
    const float mean = S::fold_add(lanes) / static_cast<float>(n);
    const F r = S::set1(1.0f / std::sqrt(mean + eps));
    for (i = 0; i + kLanes <= n; i += kLanes)
      S::store(out + i, S::mul(S::mul(S::load(x + i), r), S::load(weight + i)));
    if (i < n) {
      const F y = S::mul(S::mul(S::load_n(x + i, n - i), r), S::load_n(weight + i, n - i));
      S::store_n(out + i, y, n - i);
    }
  }
}

template <class S>
void layer_norm(const float* x, const float* weight, const float* bias, int n, float eps,
                float* out) {
  using F = typename S::F;
  const auto part = [&](const float* p, int i) DP_INLINED {
    return n - i < kLanes ? S::load_n(p + i, n - i) : S::load(p + i);
  };
  F lanes = S::zero();
  for (int i = 0; i < n; i += kLanes) lanes = S::add(lanes, part(x, i));
  const F mean = S::set1(S::fold_add(lanes) / static_cast<float>(n));
  lanes = S::zero();
  for (int i = 0; i < n; i += kLanes) {
    F d = S::sub(part(x, i), mean);
    if (n - i < kLanes) d = S::keep_n(d, n - i);
    lanes = S::fma(d, d, lanes);
  }
  const float variance = S::fold_add(lanes) / static_cast<float>(n);
  const F r = S::set1(1.0f / std::sqrt(variance + eps));
  for (int i = 0; i < n; i += kLanes) {
    const F d = S::sub(part(x, i), mean);
    const F y = S::fma(S::mul(d, r), part(weight, i), part(bias, i));
    S::store_n(out + i, y, n - i < kLanes ? n - i : kLanes);
  }
}

template <class S>
void rope(float* x, int heads, int head_dim, const float* cos, const float* sin) {
  using F = typename S::F;
  const int half = head_dim / 2;
  for (int h = 0; h < heads; ++h, x += head_dim) {
    for (int j = 0; j < half; j += kLanes) {
      const int n = half - j < kLanes ? half - j : kLanes;
      const F c = S::load_n(cos + j, n), s = S::load_n(sin + j, n);
      const F a = S::load_n(x + j, n), b = S::load_n(x + half + j, n);
      S::store_n(x + j, S::fma(a, c, S::neg(S::mul(b, s))), n);
      S::store_n(x + half + j, S::fma(b, c, S::mul(a, s)), n);
    }
  }
}

template <class S>
void swiglu(const float* g, const float* u, int64_t n, float* out) {
  using F = typename S::F;
  const F one = S::set1(1.0f);
  for (int64_t i = 0; i < n; i += kLanes) {
    const int k = n - i < kLanes ? static_cast<int>(n - i) : kLanes;
    const F v = S::load_n(g + i, k);
    const F silu = S::div(v, S::add(one, exp<S>(S::neg(v))));
    S::store_n(out + i, S::mul(silu, S::load_n(u + i, k)), k);
  }
}

// The sums of a softmax over a row; a NaN or an infinity in x shows in them.
template <class S>
bool softmax(const float* x, int n, float* p) {
  using F = typename S::F;
  float m = x[0];
  for (int i = 1; i < n; ++i) m = x[i] > m ? x[i] : m;
  const F top = S::set1(m);
  F lanes = S::zero();
  for (int i = 0; i < n; i += kLanes) {
    const int k = n - i < kLanes ? n - i : kLanes;
    const F e = S::keep_n(exp<S>(S::sub(S::load_n(x + i, k), top)), k);
    lanes = S::add(lanes, e);
    S::store_n(p + i, e, k);
  }
  const float total = S::fold_add(lanes);
  const F sum = S::set1(total);
  for (int i = 0; i < n; i += kLanes) {
    const int k = n - i < kLanes ? n - i : kLanes;
    S::store_n(p + i, S::div(S::load_n(p + i, k), sum), k);
  }
  return total < std::numeric_limits<float>::infinity();  // false for NaN too
}

template <class S>
void mix(const float* p, const float* const* e, int count, const float* residual, int64_t n,
         float* out) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int k = n - i < kLanes ? static_cast<int>(n - i) : kLanes;
    typename S::F y = S::zero();
    for (int j = 0; j < count; ++j) y = S::fma(S::set1(p[j]), S::load_n(e[j] + i, k), y);
    if (residual != nullptr) y = S::add(y, S::load_n(residual + i, k));
    S::store_n(out + i, y, k);
  }
}

template <class S>
void exp_row(const float* x, int64_t n, float divisor, float shift, float* out) {
  const typename S::F by = S::set1(divisor), down = S::set1(shift);
  for (int64_t i = 0; i < n; i += kLanes) {
    const int k = n - i < kLanes ? static_cast<int>(n - i) : kLanes;
    S::store_n(out + i, exp<S>(S::sub(S::div(S::load_n(x + i, k), by), down)), k);
  }
}

// The greatest magnitude as bits: exact, and a NaN or infinity shows as >= 0x7f800000.
template <class S, int kVectors>
int32_t magnitude_bits(const float* x) {
  const auto mask = S::iset1(0x7fffffff);
  auto best = S::izero();
  for (int v = 0; v < kVectors; ++v)
    best = S::imax(best, S::iand(S::as_int(S::load(x + kLanes * v)), mask));
  return S::ifold_max(best);
}

struct BlockScale {
  float d, inverse;
};
// amax below 2^-60 gives a block of zeros.
inline BlockScale block_scale(int32_t bits) {
  float amax;
  std::memcpy(&amax, &bits, 4);
  if (amax < 0x1p-60f) return {0.0f, 0.0f};
  return {amax / 127.0f, 127.0f / amax};
}

inline constexpr int32_t kInfinityBits = 0x7f800000;

template <class S>
bool quantize32(const float* x, int64_t n, ActBlock32* out) {
  bool finite = true;
  for (int64_t b = 0; b < n / 32; ++b, x += 32, ++out) {
    int32_t bits = magnitude_bits<S, 2>(x);
    if (bits >= kInfinityBits) {
      finite = false;
      std::memset(static_cast<void*>(out), 0, sizeof *out);
      continue;
    }
    const BlockScale scale = block_scale(bits);
    const auto inverse = S::set1(scale.inverse);
    auto sum = S::izero();
    for (int v = 0; v < 2; ++v) {
      const auto q = S::to_int(S::mul(S::load(x + kLanes * v), inverse));
      S::store_s8(out->q + kLanes * v, q);
      sum = S::iadd(sum, q);
    }
    out->d = scale.d;
    out->sum = S::ifold_add(sum);
  }
  return finite;
}

template <class S>
bool quantize256(const float* x, int64_t n, ActBlock256* out) {
  // Where the sum of sub-block b stands in sum32 and sum16.
  constexpr int kPlace[16] = {0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15};
  bool finite = true;
  for (int64_t b = 0; b < n / 256; ++b, x += 256, ++out) {
    const int32_t bits = magnitude_bits<S, 16>(x);
    if (bits >= kInfinityBits) {
      finite = false;
      std::memset(static_cast<void*>(out), 0, sizeof *out);
      continue;
    }
    const BlockScale scale = block_scale(bits);
    const auto inverse = S::set1(scale.inverse);
    out->d = scale.d;
    out->sum = 0;
    for (int s = 0; s < 16; s += 2) {
      int32_t sums[2];
      for (int h = 0; h < 2; ++h) {
        const auto q = S::to_int(S::mul(S::load(x + kLanes * (s + h)), inverse));
        S::store_s8(out->q + kLanes * (s + h), q);
        sums[h] = S::ifold_add(q);
        out->sum16_m32[s + h] = -32 * sums[h];
        out->sum16[kPlace[s + h]] = static_cast<int16_t>(sums[h]);
      }
      out->sum += sums[0] + sums[1];
      out->sum32[kPlace[s / 2]] = static_cast<int16_t>(sums[0] + sums[1]);
    }
  }
  return finite;
}

}  // namespace
}  // namespace draftproof
