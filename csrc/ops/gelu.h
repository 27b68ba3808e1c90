// GELU of a row: the steps and constants of simd/gelu_spec.h, in any shim.
#pragma once

#include <cstdint>

#include "kernels.h"
#include "ops/exp.h"
#include "simd/gelu_spec.h"

namespace draftproof {
namespace {

template <class S, int kDegree>
DP_INLINE typename S::F polynomial(const float (&c)[kDegree], typename S::F x) {
  auto p = S::set1(c[0]);
  for (int i = 1; i < kDegree; ++i) p = S::fma(p, x, S::set1(c[i]));
  return p;
}

template <class S, class Fn>
void map_row(const float* x, int64_t n, float* out, Fn fn) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int k = n - i < kLanes ? static_cast<int>(n - i) : kLanes;
    S::store_n(out + i, fn(S::load_n(x + i, k)), k);
  }
}

template <class S>
void gelu_tanh(const float* x, int64_t n, float* out) {
  const auto one = S::set1(1.0f), cubic = S::set1(kGeluCubic), slope = S::set1(kGeluSlope);
  map_row<S>(x, n, out, [&](typename S::F v) {
    const auto t = S::fma(S::mul(v, v), cubic, one);
    return S::div(v, S::add(one, exp<S>(S::mul(S::mul(v, slope), t))));
  });
}

template <class S>
void gelu_erf(const float* x, int64_t n, float* out) {
  const auto zero = S::zero(), half = S::set1(0.5f), one = S::set1(1.0f);
  map_row<S>(x, n, out, [&](typename S::F v) {
    const auto size = S::as_float(S::iand(S::as_int(v), S::iset1(0x7fffffff)));
    const auto z = S::min(size, S::set1(kGeluFar));
    const auto near = S::fma(v, polynomial<S>(kGeluNear, S::mul(v, v)), half);
    const auto s = S::fma(z, S::set1(0.25f), S::set1(-1.0f));
    const auto h = exp<S>(S::neg(polynomial<S>(kGeluTail, s)));
    const auto far = S::select_lt(v, zero, h, S::sub(one, h));
    return S::mul(v, S::select_lt(z, S::set1(kGeluNearEnd), near, far));
  });
}

}  // namespace
}  // namespace draftproof
