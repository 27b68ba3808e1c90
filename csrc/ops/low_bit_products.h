// Products of Q2_K and Q3_K: sixteen sub-blocks of sixteen inputs, whose dot products fit int16:
// at most 3 * 127 * 16 and 7 * 127 * 16 = 14,224. isum is at most 16 * 15 * 6,096 = 1,463,040 and,
// with (u - 4) and (s - 32) for Q3_K, 16 * 32 * 4 * 127 * 16 = 4,161,536; before the offset is
// taken off, 16 * 32 * 14,224 = 7,282,688. Q2_K's msum: 16 * 15 * 2,032 = 487,680.
#pragma once

#include "ops/block_steps.h"

namespace draftproof {
namespace {

// Six-bit scales of Q3_K, 32 too large: byte b of word w = sub-block 4w + b.
template <class S>
struct ScaleWords {
  typename S::I word[4];
};
template <class S>
DP_INLINE ScaleWords<S> scales_of(const PanelQ3_K& w) {
  const auto low = S::iset1(0x0f0f0f0f), high = S::iset1(0x30303030);
  const auto w0 = S::iload(w.scales[0]), w1 = S::iload(w.scales[1]), w2 = S::iload(w.scales[2]);
  const auto join = [&](auto nibbles, auto bits)
                        DP_INLINED { return S::ior(S::iand(nibbles, low), S::iand(bits, high)); };
  return {{join(w0, S::template ishl<4>(w2)), join(w1, S::template ishl<2>(w2)),
           join(S::template ishr<4>(w0), w2),
           join(S::template ishr<4>(w1), S::template ishr<2>(w2))}};
}

// Vector i (0 .. 3) of sub-block s: two bits per input.
template <class S, int s, int i>
DP_INLINE typename S::B two_bits(const uint8_t (&q)[2][8][64]) {
  constexpr int g = (s % 8) / 2;
  const auto v = S::load_b(q[s / 8][(s % 2) * 4 + i]);
  if constexpr (g == 0) return S::and_b(v, 0x03);
  return S::template shr_b<2 * g>(v, 0x03);
}
template <class S, int s, int i>
DP_INLINE typename S::B three_bits(const PanelQ3_K& w) {
  const auto high = S::load_b(w.high[(s % 2) * 4 + i]);
  return S::or_b(two_bits<S, s, i>(w.q), moved_bits<S, s / 2, 2>(high, 0x04));
}

template <class S, int M>
DP_INLINE void add_block(const PanelQ2_K& w, ActRows<ActBlock256> x, typename S::F (&acc)[M]) {
  typename S::I isum[M];
  each_row<M>([&](auto m) DP_INLINED { isum[m] = S::izero(); });
  unroll<16>([&](auto s) DP_INLINED {
    typename S::I dot[M];
    each_row<M>([&](auto m) DP_INLINED { dot[m] = S::izero(); });
    unroll<4>([&](auto i) DP_INLINED {
      const auto u = two_bits<S, s, i>(w.q);
      each_row<M>([&](auto m)
                      DP_INLINED { dot[m] = S::dot4_u(dot[m], u, x[m].q + 16 * s + 4 * i); });
    });
    const auto scale =
        scale_byte<S, s % 4>(S::iand(S::iload(w.scales[s / 4]), S::iset1(0x0f0f0f0f)));
    each_row<M>([&](auto m)
                    DP_INLINED { isum[m] = S::madd16(isum[m], dot[m], S::factor16(scale)); });
  });
  add_isum<S>(w, x, isum, acc);
}

// isum -= 4 * sum of scale * sum of q: what the products of u have too much.
template <class S, int M>
DP_INLINE void take_off_fours(const ScaleWords<S>& scales, ActRows<ActBlock256> x,
                              typename S::I (&isum)[M]) {
  const auto even = S::iset1(0x00ff00ff);
  each_row<M>([&](auto m) DP_INLINED {
    auto sum = S::iset1(-32 * x[m].sum);
    unroll<4>([&](auto i) DP_INLINED {
      sum = S::dot2(sum, S::iand(scales.word[i], even), x[m].sum16 + 4 * i);
      sum =
          S::dot2(sum, S::iand(S::template ishr<8>(scales.word[i]), even), x[m].sum16 + 4 * i + 2);
    });
    isum[m] = S::isub(isum[m], S::template ishl<2>(sum));
  });
}

template <class S, int M>
DP_INLINE void add_block(const PanelQ3_K& w, ActRows<ActBlock256> x, typename S::F (&acc)[M]) {
  typename S::I isum[M];
  each_row<M>([&](auto m) DP_INLINED { isum[m] = S::izero(); });
  const ScaleWords<S> scales = scales_of<S>(w);
  unroll<16>([&](auto s) DP_INLINED {
    typename S::I dot[M];
    each_row<M>([&](auto m) DP_INLINED { dot[m] = S::izero(); });
    unroll<4>([&](auto i) DP_INLINED {
      const auto u = three_bits<S, s, i>(w);
      each_row<M>([&](auto m)
                      DP_INLINED { dot[m] = S::dot4_u(dot[m], u, x[m].q + 16 * s + 4 * i); });
    });
    const auto scale = S::factor16(S::isub(scale_byte<S, s % 4>(scales.word[s / 4]), S::iset1(32)));
    each_row<M>([&](auto m) DP_INLINED { isum[m] = S::madd16(isum[m], dot[m], scale); });
  });
  take_off_fours<S>(scales, x, isum);
  add_isum<S>(w, x, isum, acc);
}

}  // namespace
}  // namespace draftproof
