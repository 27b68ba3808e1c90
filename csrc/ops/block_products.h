// One block of a panel (sixteen outputs) times M quantized rows: the integer products per type.
// Those of the smallest types and of value tables are in low_bit_products.h and lookup_products.h.
//
// Everything up to isum is exact int32, so how it is computed can't change a bit. Bounds (|q| <=
// 127): the greatest |isum| is 133,169,152 (Q6_K: 16 * 128 * 16 * 32 * 127), the greatest |msum|
// 2,048,256, so int32 never overflows and every msum converts exactly. float(isum) rounds the
// integer once.
#pragma once

#include "ops/block_steps.h"

namespace draftproof {
namespace {

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
  add_isum<S>(w, x, isum, acc);
}

template <class S, int M>
DP_INLINE void add_block(const PanelQ4_1& w, ActRows<ActBlock32> x, typename S::F (&acc)[M]) {
  typename S::I isum[M];
  each_row<M>([&](auto m) DP_INLINED { isum[m] = S::izero(); });
  dot_nibbles32<S>(w.q, x, isum);
  add_isum<S>(w, x, isum, acc);
}

template <class S, int M>
DP_INLINE void add_block(const PanelQ5_0& w, ActRows<ActBlock32> x, typename S::F (&acc)[M]) {
  typename S::I isum[M];
  start_at<S>(-16, x, isum);
  dot_fives32<S>(w.q, w.high, x, isum);
  add_isum<S>(w, x, isum, acc);
}

template <class S, int M>
DP_INLINE void add_block(const PanelQ5_1& w, ActRows<ActBlock32> x, typename S::F (&acc)[M]) {
  typename S::I isum[M];
  each_row<M>([&](auto m) DP_INLINED { isum[m] = S::izero(); });
  dot_fives32<S>(w.q, w.high, x, isum);
  add_isum<S>(w, x, isum, acc);
}

template <class S, int M>
DP_INLINE void add_block(const PanelQ8_0& w, ActRows<ActBlock32> x, typename S::F (&acc)[M]) {
  typename S::I isum[M];
  start_at<S>(-S::kSignedBias, x, isum);
  unroll<8>([&](auto j) DP_INLINED {
    const auto v = S::load_b(w.q[j]);
    each_row<M>([&](auto m) DP_INLINED { isum[m] = S::dot4_s(isum[m], v, x[m].q + 4 * j); });
  });
  add_isum<S>(w, x, isum, acc);
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
  add_isum<S>(w, x, isum, acc);
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
  add_isum<S>(w, x, isum, acc);
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
  add_isum<S>(w, x, isum, acc);
}

}  // namespace
}  // namespace draftproof
