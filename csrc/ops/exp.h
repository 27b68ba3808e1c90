// exp of sixteen lanes: the steps and constants of simd/exp_spec.h, in any shim.
#pragma once

#include "simd/exp_spec.h"

namespace draftproof {
namespace {

template <class S>
typename S::F exp(typename S::F x) {
  using F = typename S::F;
  const F low = S::set1(kExpLo);
  // Constants first: a NaN in x must stay. The clamp below only keeps n within int32.
  const F z = S::max(low, S::min(S::set1(kExpHi), x));
  const F magic = S::set1(kExpMagic);
  const F n = S::sub(S::add(S::mul(z, S::set1(kLog2e)), magic), magic);
  F r = S::fma(n, S::set1(-kLn2Hi), z);
  r = S::fma(n, S::set1(-kLn2Lo), r);
  F p = S::set1(kExpC[0]);
  for (int i = 1; i <= kExpDegree; ++i) p = S::fma(p, r, S::set1(kExpC[i]));
  const F y = S::add(S::fma(p, S::mul(r, r), r), S::set1(1.0f));
  const F scaled = S::as_float(S::iadd(S::as_int(y), S::template ishl<23>(S::to_int(n))));
  return S::select_lt(x, low, S::zero(), scaled);
}

}  // namespace
}  // namespace draftproof
