// What the block products share: loops over the rows of a tile, sub-block scales, and the float
// steps of the arithmetic, in this order: t = d_w * float(isum); with a min t = fma(-dmin_w,
// float(msum), t) (Q4_1, Q5_1: fma(m_w, float(sum), t)); acc = fma(d_x, t, acc).
#pragma once

#include <utility>

#include "packed.h"

// Vector code must be inlined whole to stay in registers; scalar code would only grow.
#if defined(DRAFTPROOF_SCALAR_ROW)
#define DP_INLINE inline
#define DP_INLINED
#else
#define DP_INLINE inline __attribute__((always_inline))
#define DP_INLINED __attribute__((always_inline))  // the same on a lambda
#endif

namespace draftproof {
namespace {

// Calls fn(integral_constant 0) .. fn(integral_constant N-1): indices known at compile time.
template <int N, class Fn>
DP_INLINE void unroll(Fn&& fn) {
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) DP_INLINED {
    (fn(std::integral_constant<int, kIndex>{}), ...);
  }(std::make_integer_sequence<int, N>{});
}

// fn(0) .. fn(M-1) for the rows of a tile: unrolled, so that their accumulators stay in registers;
// a loop in the scalar row, where that would only cost size.
template <int M, class Fn>
DP_INLINE void each_row(Fn&& fn) {
#if defined(DRAFTPROOF_SCALAR_ROW)
  for (int m = 0; m < M; ++m) fn(m);
#else
  unroll<M>(fn);
#endif
}

// M rows of activation blocks of one block index.
template <class Block>
struct ActRows {
  const uint8_t* base;
  size_t stride;
  const Block& operator[](int m) const {
    return *reinterpret_cast<const Block*>(base + static_cast<size_t>(m) * stride);
  }
};

// (v & 15) for kHigh = false; the high nibble otherwise. Where dot4_u takes all of uint8 the high
// nibble stays where it is, sixteen times too large, and the product is shifted back.
template <class S, bool kHigh>
DP_INLINE typename S::B nibble(typename S::B v) {
  if constexpr (!kHigh) return S::and_b(v, 0x0f);
  if constexpr (S::kFullU8) return S::and_b(v, 0xf0);
  return S::template shr_b<4>(v, 0x0f);
}
template <class S, bool kHigh>
DP_INLINE typename S::I nibble_product(typename S::I dot) {
  if constexpr (kHigh && S::kFullU8) return S::template isar<4>(dot);
  return dot;
}

// Bit kBit of every byte, moved to the value kTo (a power of two).
template <class S, int kBit, int kToBit>
DP_INLINE typename S::B moved_bits(typename S::B v, uint8_t mask) {
  if constexpr (kBit < kToBit)
    return S::template shl_b<kToBit - kBit>(v, mask);
  else if constexpr (kBit == kToBit)
    return S::and_b(v, mask);
  else
    return S::template shr_b<kBit - kToBit>(v, mask);
}

// Six-bit scales and mins of Q4_K and Q5_K: byte b of lane r = sub-block b (low: 0..3, high: 4..7).
template <class S>
struct SixBits {
  typename S::I low, high;
};
template <class S>
DP_INLINE SixBits<S> scales_of(const int32_t (&words)[3][16]) {
  const auto w0 = S::iload(words[0]), w2 = S::iload(words[2]);
  return {S::iand(w0, S::iset1(0x3f3f3f3f)),
          S::ior(S::iand(w2, S::iset1(0x0f0f0f0f)),
                 S::iand(S::template ishr<2>(w0), S::iset1(0x30303030)))};
}
template <class S>
DP_INLINE SixBits<S> min_bytes_of(const int32_t (&words)[3][16]) {
  const auto w1 = S::iload(words[1]), w2 = S::iload(words[2]);
  return {S::iand(w1, S::iset1(0x3f3f3f3f)),
          S::ior(S::iand(S::template ishr<4>(w2), S::iset1(0x0f0f0f0f)),
                 S::iand(S::template ishr<2>(w1), S::iset1(0x30303030)))};
}
template <class S, int kByte>
DP_INLINE typename S::I scale_byte(typename S::I v) {
  if constexpr (kByte == 3)
    return S::template ishr<24>(v);
  else
    return S::iand(S::template ishr<8 * kByte>(v), S::iset1(0xff));
}

// msum of a block = sum of min * sum of q, over its sub-blocks. Masking every other byte of four
// mins gives the int16 pairs (0, 2) and (1, 3): hence the order of ActBlock256's sums.
template <class S, int kNumPairs>
struct MinPairs {
  typename S::I pair[kNumPairs];

  DP_INLINE typename S::I times(const ActBlock256& x) const {
    const int16_t* sums = kNumPairs == 8 ? x.sum16 : x.sum32;
    auto msum = S::izero();
    unroll<kNumPairs>([&](auto i) DP_INLINED { msum = S::dot2(msum, pair[i], sums + 2 * i); });
    return msum;
  }
};
template <class S, class Panel>
DP_INLINE MinPairs<S, 4> mins_of(const Panel& w) {  // Q4_K, Q5_K: of sums over 32
  const SixBits<S> mins = min_bytes_of<S>(w.scales);
  const auto even = S::iset1(0x00ff00ff);
  return {{S::iand(mins.low, even), S::iand(S::template ishr<8>(mins.low), even),
           S::iand(mins.high, even), S::iand(S::template ishr<8>(mins.high), even)}};
}
template <class S>
DP_INLINE MinPairs<S, 8> mins_of(const PanelQ2_K& w) {  // of sums over 16
  MinPairs<S, 8> mins;
  const auto even = S::iset1(0x000f000f);
  unroll<4>([&](auto i) DP_INLINED {
    const auto word = S::iload(w.scales[i]);
    mins.pair[2 * i] = S::iand(S::template ishr<4>(word), even);
    mins.pair[2 * i + 1] = S::iand(S::template ishr<12>(word), even);
  });
  return mins;
}

// 2^(e - 128). The exponent field is e - 1; below it, at e = 0 and 1, the number is denormal.
template <class S>
DP_INLINE typename S::F exponent_scale(const uint8_t* e) {
  const auto v = S::iand(S::iload_s8(reinterpret_cast<const int8_t*>(e)), S::iset1(0xff));
  const auto normal = S::template ishl<23>(S::isub(v, S::iset1(1)));
  const auto denormal = S::iadd(S::template ishl<21>(v), S::iset1(1 << 21));  // less from e = 2 on
  return S::as_float(S::imax(normal, denormal));
}

template <class S, class Panel>
DP_INLINE typename S::F scale_of(const Panel& w) {
  if constexpr (requires { w.exponent; })
    return exponent_scale<S>(w.exponent);
  else
    return S::load_f16(w.d);
}

// The float steps from sum(m) = float(isum) of row m on.
template <class S, class Panel, class Block, class Sum, int M>
DP_INLINE void add_sums(const Panel& w, ActRows<Block> x, Sum sum, typename S::F (&acc)[M]) {
  const auto d = scale_of<S>(w);
  if constexpr (requires { w.dmin; }) {
    const auto mins = mins_of<S>(w);
    const auto dmin = S::load_f16(w.dmin);
    each_row<M>([&](auto m) DP_INLINED {
      auto t = S::mul(d, sum(m));
      t = S::fnma(dmin, S::to_float(mins.times(x[m])), t);
      acc[m] = S::fma(S::set1(x[m].d), t, acc[m]);
    });
  } else if constexpr (requires { w.m; }) {
    const auto add = S::load_f16(w.m);
    each_row<M>([&](auto m) DP_INLINED {
      auto t = S::mul(d, sum(m));
      t = S::fma(add, S::set1(static_cast<float>(x[m].sum)), t);
      acc[m] = S::fma(S::set1(x[m].d), t, acc[m]);
    });
  } else {
    each_row<M>([&](auto m)
                    DP_INLINED { acc[m] = S::fma(S::set1(x[m].d), S::mul(d, sum(m)), acc[m]); });
  }
}

template <class S, class Panel, class Block, int M>
DP_INLINE void add_isum(const Panel& w, ActRows<Block> x, const typename S::I (&isum)[M],
                        typename S::F (&acc)[M]) {
  add_sums<S>(w, x, [&](auto m) DP_INLINED { return S::to_float(isum[m]); }, acc);
}

}  // namespace
}  // namespace draftproof
