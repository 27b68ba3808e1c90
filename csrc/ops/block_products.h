// One block of a panel (sixteen outputs) times M quantized rows: the integer products per type,
// then the float steps of the arithmetic, in this order: t = d_w * float(isum); with a min t =
// fma(-dmin_w, float(msum), t) (Q4_1, Q5_1: fma(m_w, float(sum), t)); acc = fma(d_x, t, acc).
//
// Everything up to isum is exact int32, so how it is computed can't change a bit. Bounds (|q| <=
// 127): the greatest |isum| is 133,169,152 (Q6_K: 16 * 128 * 16 * 32 * 127), the greatest |msum|
// 2,048,256, so int32 never overflows and every msum converts exactly. float(isum) rounds the
// integer once.
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

template <class S, int M, class Block>
DP_INLINE void add_scaled(const uint16_t* d_w, ActRows<Block> x, const typename S::I (&isum)[M],
                          typename S::F (&acc)[M]) {
  const auto d = S::load_f16(d_w);
  each_row<M>([&](auto m) DP_INLINED {
    acc[m] = S::fma(S::set1(x[m].d), S::mul(d, S::to_float(isum[m])), acc[m]);
  });
}

template <class S, int M>
DP_INLINE void add_scaled_plus(const uint16_t* d_w, const uint16_t* m_w, ActRows<ActBlock32> x,
                               const typename S::I (&isum)[M], typename S::F (&acc)[M]) {
  const auto d = S::load_f16(d_w), add = S::load_f16(m_w);
  each_row<M>([&](auto m) DP_INLINED {
    auto t = S::mul(d, S::to_float(isum[m]));
    t = S::fma(add, S::set1(static_cast<float>(x[m].sum)), t);
    acc[m] = S::fma(S::set1(x[m].d), t, acc[m]);
  });
}

// Starts of the accumulators: -offset * sum(q), which makes unsigned weights signed for free.
template <class S, int M>
DP_INLINE void start_at(int32_t minus_offset, ActRows<ActBlock32> x, typename S::I (&isum)[M]) {
  each_row<M>([&](auto m) DP_INLINED { isum[m] = S::iset1(minus_offset * x[m].sum); });
}

template <class S, int M>
DP_INLINE void dot_nibbles32(const uint8_t (&q)[4][64], ActRows<ActBlock32> x,
                             typename S::I (&low)[M]) {
  typename S::I high[M];
  each_row<M>([&](auto m) DP_INLINED { high[m] = S::izero(); });
  unroll<4>([&](auto j) DP_INLINED {
    const auto v = S::load_b(q[j]);
    const auto lo = nibble<S, false>(v), hi = nibble<S, true>(v);
    each_row<M>([&](auto m) DP_INLINED {
      low[m] = S::dot4_u(low[m], lo, x[m].q + 4 * j);
      high[m] = S::dot4_u(high[m], hi, x[m].q + 16 + 4 * j);
    });
  });
  each_row<M>([&](auto m)
                  DP_INLINED { low[m] = S::iadd(low[m], nibble_product<S, true>(high[m])); });
}

template <class S, int M>
DP_INLINE void dot_fives32(const uint8_t (&q)[4][64], const uint8_t (&high)[64],
                           ActRows<ActBlock32> x, typename S::I (&isum)[M]) {
  const auto bits = S::load_b(high);
  unroll<4>([&](auto j) DP_INLINED {
    const auto v = S::load_b(q[j]);
    const auto lo = S::or_b(S::and_b(v, 0x0f), moved_bits<S, j, 4>(bits, 0x10));
    const auto hi = S::or_b(S::template shr_b<4>(v, 0x0f), moved_bits<S, j + 4, 4>(bits, 0x10));
    each_row<M>([&](auto m) DP_INLINED {
      isum[m] = S::dot4_u(isum[m], lo, x[m].q + 4 * j);
      isum[m] = S::dot4_u(isum[m], hi, x[m].q + 16 + 4 * j);
    });
  });
}

template <class S, int M>
DP_INLINE void add_block(const PanelQ4_0& w, ActRows<ActBlock32> x, typename S::F (&acc)[M]) {
  typename S::I isum[M];
  start_at<S>(-8, x, isum);
  dot_nibbles32<S>(w.q, x, isum);
  add_scaled<S>(w.d, x, isum, acc);
}

template <class S, int M>
DP_INLINE void add_block(const PanelQ4_1& w, ActRows<ActBlock32> x, typename S::F (&acc)[M]) {
  typename S::I isum[M];
  each_row<M>([&](auto m) DP_INLINED { isum[m] = S::izero(); });
  dot_nibbles32<S>(w.q, x, isum);
  add_scaled_plus<S>(w.d, w.m, x, isum, acc);
}

template <class S, int M>
DP_INLINE void add_block(const PanelQ5_0& w, ActRows<ActBlock32> x, typename S::F (&acc)[M]) {
  typename S::I isum[M];
  start_at<S>(-16, x, isum);
  dot_fives32<S>(w.q, w.high, x, isum);
  add_scaled<S>(w.d, x, isum, acc);
}

template <class S, int M>
DP_INLINE void add_block(const PanelQ5_1& w, ActRows<ActBlock32> x, typename S::F (&acc)[M]) {
  typename S::I isum[M];
  each_row<M>([&](auto m) DP_INLINED { isum[m] = S::izero(); });
  dot_fives32<S>(w.q, w.high, x, isum);
  add_scaled_plus<S>(w.d, w.m, x, isum, acc);
}

template <class S, int M>
DP_INLINE void add_block(const PanelQ8_0& w, ActRows<ActBlock32> x, typename S::F (&acc)[M]) {
  typename S::I isum[M];
  start_at<S>(-S::kSignedBias, x, isum);
  unroll<8>([&](auto j) DP_INLINED {
    const auto v = S::load_b(w.q[j]);
    each_row<M>([&](auto m) DP_INLINED { isum[m] = S::dot4_s(isum[m], v, x[m].q + 4 * j); });
  });
  add_scaled<S>(w.d, x, isum, acc);
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
DP_INLINE SixBits<S> mins_of(const int32_t (&words)[3][16]) {
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

// msum = sum of min_b * sum32_b. Masking every other byte gives the int16 pairs (0, 2) and (1, 3)
// of each four mins: hence the order of ActBlock256::sum32.
template <class S, int M>
DP_INLINE void add_scaled_minus(const uint16_t* d_w, const uint16_t* dmin_w,
                                const int32_t (&scales)[3][16], ActRows<ActBlock256> x,
                                const typename S::I (&isum)[M], typename S::F (&acc)[M]) {
  const SixBits<S> mins = mins_of<S>(scales);
  const auto even = S::iset1(0x00ff00ff);
  const auto pair02 = S::iand(mins.low, even),
             pair13 = S::iand(S::template ishr<8>(mins.low), even);
  const auto pair46 = S::iand(mins.high, even),
             pair57 = S::iand(S::template ishr<8>(mins.high), even);
  const auto d = S::load_f16(d_w), dmin = S::load_f16(dmin_w);
  each_row<M>([&](auto m) DP_INLINED {
    auto msum = S::dot2(S::izero(), pair02, x[m].sum32);
    msum = S::dot2(msum, pair13, x[m].sum32 + 2);
    msum = S::dot2(msum, pair46, x[m].sum32 + 4);
    msum = S::dot2(msum, pair57, x[m].sum32 + 6);
    auto t = S::mul(d, S::to_float(isum[m]));
    t = S::fnma(dmin, S::to_float(msum), t);
    acc[m] = S::fma(S::set1(x[m].d), t, acc[m]);
  });
}

template <class S, int M>
DP_INLINE void add_block(const PanelQ4_K& w, ActRows<ActBlock256> x, typename S::F (&acc)[M]) {
  typename S::I isum[M];
  each_row<M>([&](auto m) DP_INLINED { isum[m] = S::izero(); });
  const SixBits<S> scales = scales_of<S>(w.scales);
  unroll<8>([&](auto b) DP_INLINED {
    constexpr bool kHigh = b % 2 == 1;
    typename S::I dot[M];
    each_row<M>([&](auto m) DP_INLINED { dot[m] = S::izero(); });
    unroll<8>([&](auto j) DP_INLINED {
      const auto u = nibble<S, kHigh>(S::load_b(w.q[b / 2][j]));
      each_row<M>([&](auto m)
                      DP_INLINED { dot[m] = S::dot4_u(dot[m], u, x[m].q + 32 * b + 4 * j); });
    });
    const auto s = scale_byte<S, b % 4>(b < 4 ? scales.low : scales.high);
    each_row<M>([&](auto m) DP_INLINED {
      isum[m] = S::iadd(isum[m], S::imul(s, nibble_product<S, kHigh>(dot[m])));
    });
  });
  add_scaled_minus<S>(w.d, w.dmin, w.scales, x, isum, acc);
}

template <class S, int M>
DP_INLINE void add_block(const PanelQ5_K& w, ActRows<ActBlock256> x, typename S::F (&acc)[M]) {
  typename S::I isum[M];
  each_row<M>([&](auto m) DP_INLINED { isum[m] = S::izero(); });
  const SixBits<S> scales = scales_of<S>(w.scales);
  unroll<8>([&](auto b) DP_INLINED {
    typename S::I dot[M];
    each_row<M>([&](auto m) DP_INLINED { dot[m] = S::izero(); });
    unroll<8>([&](auto j) DP_INLINED {
      const auto v = S::load_b(w.q[b / 2][j]);
      const auto bits = moved_bits<S, b, 4>(S::load_b(w.high[j]), 0x10);
      const auto low = b % 2 == 0 ? S::and_b(v, 0x0f) : S::template shr_b<4>(v, 0x0f);
      const auto u = S::or_b(low, bits);
      each_row<M>([&](auto m)
                      DP_INLINED { dot[m] = S::dot4_u(dot[m], u, x[m].q + 32 * b + 4 * j); });
    });
    const auto s = scale_byte<S, b % 4>(b < 4 ? scales.low : scales.high);
    each_row<M>([&](auto m) DP_INLINED { isum[m] = S::iadd(isum[m], S::imul(s, dot[m])); });
  });
  add_scaled_minus<S>(w.d, w.dmin, w.scales, x, isum, acc);
}

template <class S, int M>
DP_INLINE void add_block(const PanelQ6_K& w, ActRows<ActBlock256> x, typename S::F (&acc)[M]) {
  typename S::I isum[M];
  each_row<M>([&](auto m) DP_INLINED { isum[m] = S::izero(); });
  unroll<16>([&](auto s) DP_INLINED {
    constexpr int n = s / 8, g = (s % 8) / 2, first = (s % 2) * 4;
    typename S::I dot[M];
    each_row<M>([&](auto m) DP_INLINED { dot[m] = S::iset1(x[m].sum16_m32[s]); });
    unroll<4>([&](auto i) DP_INLINED {
      constexpr int j = first + i;
      const auto v = S::load_b(w.low[n][g % 2][j]);
      const auto low = g < 2 ? S::and_b(v, 0x0f) : S::template shr_b<4>(v, 0x0f);
      const auto high = moved_bits<S, 2 * g, 4>(S::load_b(w.high[n][j]), 0x30);
      const auto u = S::or_b(low, high);
      each_row<M>([&](auto m)
                      DP_INLINED { dot[m] = S::dot4_u(dot[m], u, x[m].q + 16 * s + 4 * i); });
    });
    const auto scale = S::iload_s8(w.scales[s]);
    each_row<M>([&](auto m) DP_INLINED { isum[m] = S::iadd(isum[m], S::imul(scale, dot[m])); });
  });
  add_scaled<S>(w.d, x, isum, acc);
}

}  // namespace
}  // namespace draftproof
