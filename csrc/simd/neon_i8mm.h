// The NEON shim with i8mm: Neon, and for two rows and more the integer products by smmla. Owns
// these products; everything else is Neon's.
#pragma once

#include "ops/block_products.h"
#include "ops/lookup_products.h"
#include "ops/low_bit_products.h"
#include "simd/neon.h"

namespace draftproof {
namespace {

// Register R (outputs 4R .. 4R+3) of sixteen lanes.
template <int R, class Lanes>
DP_INLINE auto& part(Lanes& x) {
  if constexpr (R == 0)
    return x.a;
  else if constexpr (R == 1)
    return x.b;
  else if constexpr (R == 2)
    return x.c;
  else
    return x.d;
}

// isum[m] = add(isum[m], product), where product is kVectors byte vectors (four inputs each) times
// the rows' inputs from `first` on. weight(j, r) gives sixteen bytes of vector j, outputs 4r ..
// 4r+3, as values that fit int8; add(sum, product, r) works on those outputs.
//
// smmla multiplies two outputs with two rows, eight inputs deep: zipping two vectors gives its
// first operand, and its four sums are taken apart at the end. Eight outputs at a time, so that
// the sums of eight rows stay in registers; all sixteen for two rows, so that there are enough
// sums to hide the latency.
template <int kVectors, int M, class Block, class Weight, class Add>
DP_INLINE void multiply(ActRows<Block> x, int first, Neon::I (&isum)[M], Weight weight, Add add) {
  static_assert(M % 2 == 0 && kVectors % 2 == 0);
  constexpr int kParts = M == 2 ? 4 : 2;
  unroll<4 / kParts>([&](auto pass) DP_INLINED {
    int32x4_t dot[M / 2][2 * kParts];
    for (int p = 0; p < M / 2; ++p)
      for (int o = 0; o < 2 * kParts; ++o) dot[p][o] = vdupq_n_s32(0);
    unroll<kVectors / 2>([&](auto j) DP_INLINED {
      int8x16_t outputs[2 * kParts];
      unroll<kParts>([&](auto r) DP_INLINED {
        constexpr std::integral_constant<int, kParts * pass + r> at;
        const uint32x4_t even =
            vreinterpretq_u32_u8(weight(std::integral_constant<int, 2 * j>{}, at));
        const uint32x4_t odd =
            vreinterpretq_u32_u8(weight(std::integral_constant<int, 2 * j + 1>{}, at));
        outputs[2 * r] = vreinterpretq_s8_u32(vzip1q_u32(even, odd));
        outputs[2 * r + 1] = vreinterpretq_s8_u32(vzip2q_u32(even, odd));
      });
      for (int p = 0; p < M / 2; ++p) {
        const int8x16_t rows = vcombine_s8(vld1_s8(x[2 * p].q + first + 8 * j),
                                           vld1_s8(x[2 * p + 1].q + first + 8 * j));
        for (int o = 0; o < 2 * kParts; ++o) dot[p][o] = vmmlaq_s32(dot[p][o], outputs[o], rows);
      }
    });
    unroll<kParts>([&](auto r) DP_INLINED {
      constexpr std::integral_constant<int, kParts * pass + r> at;
      for (int p = 0; p < M / 2; ++p) {
        int32x4_t& even = part<at>(isum[2 * p]);
        int32x4_t& odd = part<at>(isum[2 * p + 1]);
        even = add(even, vuzp1q_s32(dot[p][2 * r], dot[p][2 * r + 1]), at);
        odd = add(odd, vuzp2q_s32(dot[p][2 * r], dot[p][2 * r + 1]), at);
      }
    });
  });
}

// For blocks with one scale.
inline constexpr auto kPlain = [](int32x4_t sum, int32x4_t dot, auto)
                                   DP_INLINED { return vaddq_s32(sum, dot); };
// For sub-blocks: in any order, the bounds of block_products.h hold.
DP_INLINE auto times(Neon::I scale) {
  return [scale](int32x4_t sum, int32x4_t dot, auto r)
             DP_INLINED { return vmlaq_s32(sum, dot, part<r>(scale)); };
}

DP_INLINE uint8x16_t low_nibble(uint8x16_t v) { return vandq_u8(v, vdupq_n_u8(0x0f)); }
// Bits moved up by n (down by -n); n is known at run time only, which keeps the loops over
// sub-blocks loops.
DP_INLINE uint8x16_t moved(uint8x16_t v, int n) {
  return vshlq_u8(v, vdupq_n_s8(static_cast<int8_t>(n)));
}

template <int M>
DP_INLINE void multiply_nibbles(const uint8_t (&q)[4][64], ActRows<ActBlock32> x,
                                Neon::I (&isum)[M]) {
  const auto weight = [&](auto j, auto r) DP_INLINED {
    const uint8x16_t v = vld1q_u8(q[j % 4] + 16 * r);
    return j < 4 ? low_nibble(v) : vshrq_n_u8(v, 4);
  };
  multiply<8>(x, 0, isum, weight, kPlain);
}

template <int M>
DP_INLINE void multiply_fives(const uint8_t (&q)[4][64], const uint8_t (&high)[64],
                              ActRows<ActBlock32> x, Neon::I (&isum)[M]) {
  const auto weight = [&](auto j, auto r) DP_INLINED {
    const uint8x16_t v = vld1q_u8(q[j % 4] + 16 * r);
    const uint8x16_t bit = vandq_u8(moved(vld1q_u8(high + 16 * r), 4 - j), vdupq_n_u8(0x10));
    return vorrq_u8(j < 4 ? low_nibble(v) : vshrq_n_u8(v, 4), bit);
  };
  multiply<8>(x, 0, isum, weight, kPlain);
}

// Q4_K and Q5_K: weight(b, j, r) of sub-block b.
template <int M, class Weight>
DP_INLINE void multiply_k(const int32_t (&scales)[3][16], ActRows<ActBlock256> x,
                          Neon::I (&isum)[M], Weight weight) {
  for (int m = 0; m < M; ++m) isum[m] = Neon::izero();
  const SixBits<Neon> words = scales_of<Neon>(scales);
  Neon::I word = words.low;
#pragma GCC unroll 1
  for (int b = 0; b < 8; ++b) {
    if (b == 4) word = words.high;
    const Neon::I scale = Neon::iand(word, Neon::iset1(0xff));
    word = Neon::ishr<8>(word);
    multiply<8>(
        x, 32 * b, isum, [&](auto j, auto r) DP_INLINED { return weight(b, j, r); }, times(scale));
  }
}

// Logical, by n >= 0 known at run time only.
DP_INLINE Neon::I shifted_right(Neon::I v, int n) {
  const int32x4_t by = vdupq_n_s32(-n);
  return Neon::ieach(
      [=](auto u) { return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(u), by)); }, v);
}

// Vector i of sub-block s of Q2_K and Q3_K, register r.
DP_INLINE uint8x16_t two_bits_at(const uint8_t (&q)[2][8][64], int s, int i, int r) {
  const uint8x16_t v = vld1q_u8(q[s / 8][s % 2 * 4 + i] + 16 * r);
  return vandq_u8(moved(v, -2 * (s % 8 / 2)), vdupq_n_u8(0x03));
}

// Weights of 32 inputs out of a table of int8.
template <const int8_t (&kValues)[16]>
DP_INLINE auto values_at(const uint8_t (&q)[4][64]) {
  return [&q](auto j, auto r) DP_INLINED {
    const uint8x16_t v = vld1q_u8(q[j % 4] + 16 * r);
    const uint8x16_t table = vld1q_u8(ValueTable<kValues, 0>::kBytes.v);
    return vqtbl1q_u8(table, j < 4 ? low_nibble(v) : vshrq_n_u8(v, 4));
  };
}

struct NeonI8mm : Neon {
  static constexpr const char* kName = "neon_i8mm";

  // The products of block_products.h for even tiles; linear.h prefers them.
  template <int M>
    requires(M % 2 == 0)
  DP_INLINE static void add_block(const PanelQ4_0& w, ActRows<ActBlock32> x, F (&acc)[M]) {
    I isum[M];
    start_at<Neon>(-8, x, isum);
    multiply_nibbles(w.q, x, isum);
    add_isum<Neon>(w, x, isum, acc);
  }

  template <int M>
    requires(M % 2 == 0)
  DP_INLINE static void add_block(const PanelQ4_1& w, ActRows<ActBlock32> x, F (&acc)[M]) {
    I isum[M];
    for (int m = 0; m < M; ++m) isum[m] = izero();
    multiply_nibbles(w.q, x, isum);
    add_isum<Neon>(w, x, isum, acc);
  }

  template <int M>
    requires(M % 2 == 0)
  DP_INLINE static void add_block(const PanelQ5_0& w, ActRows<ActBlock32> x, F (&acc)[M]) {
    I isum[M];
    start_at<Neon>(-16, x, isum);
    multiply_fives(w.q, w.high, x, isum);
    add_isum<Neon>(w, x, isum, acc);
  }

  template <int M>
    requires(M % 2 == 0)
  DP_INLINE static void add_block(const PanelQ5_1& w, ActRows<ActBlock32> x, F (&acc)[M]) {
    I isum[M];
    for (int m = 0; m < M; ++m) isum[m] = izero();
    multiply_fives(w.q, w.high, x, isum);
    add_isum<Neon>(w, x, isum, acc);
  }

  template <int M>
    requires(M % 2 == 0)
  DP_INLINE static void add_block(const PanelQ8_0& w, ActRows<ActBlock32> x, F (&acc)[M]) {
    I isum[M];
    for (int m = 0; m < M; ++m) isum[m] = izero();
    const auto weight = [&](auto j, auto r) DP_INLINED { return vld1q_u8(w.q[j] + 16 * r); };
    multiply<8>(x, 0, isum, weight, kPlain);
    add_isum<Neon>(w, x, isum, acc);
  }

  template <int M>
    requires(M % 2 == 0)
  DP_INLINE static void add_block(const PanelQ4_K& w, ActRows<ActBlock256> x, F (&acc)[M]) {
    I isum[M];
    multiply_k(w.scales, x, isum, [&](int b, auto j, auto r) DP_INLINED {
      return low_nibble(moved(vld1q_u8(w.q[b / 2][j] + 16 * r), -4 * (b % 2)));
    });
    add_isum<Neon>(w, x, isum, acc);
  }

  template <int M>
    requires(M % 2 == 0)
  DP_INLINE static void add_block(const PanelQ5_K& w, ActRows<ActBlock256> x, F (&acc)[M]) {
    I isum[M];
    multiply_k(w.scales, x, isum, [&](int b, auto j, auto r) DP_INLINED {
      const uint8x16_t low = low_nibble(moved(vld1q_u8(w.q[b / 2][j] + 16 * r), -4 * (b % 2)));
      const uint8x16_t bit = moved(vld1q_u8(w.high[j] + 16 * r), 4 - b);
      return vorrq_u8(low, vandq_u8(bit, vdupq_n_u8(0x10)));
    });
    add_isum<Neon>(w, x, isum, acc);
  }

  template <int M>
    requires(M % 2 == 0)
  DP_INLINE static void add_block(const PanelQ6_K& w, ActRows<ActBlock256> x, F (&acc)[M]) {
    I isum[M];
    for (int m = 0; m < M; ++m) isum[m] = izero();
#pragma GCC unroll 1
    for (int s = 0; s < 16; ++s) {
      const int n = s / 8, g = (s % 8) / 2, first = (s % 2) * 4;
      // 0 .. 63, and 32 less as int8.
      const auto weight = [&](auto i, auto r) DP_INLINED {
        const uint8x16_t low = moved(vld1q_u8(w.low[n][g % 2][first + i] + 16 * r), -4 * (g / 2));
        const uint8x16_t high = moved(vld1q_u8(w.high[n][first + i] + 16 * r), 4 - 2 * g);
        const uint8x16_t u = vorrq_u8(low_nibble(low), vandq_u8(high, vdupq_n_u8(0x30)));
        return vsubq_u8(u, vdupq_n_u8(32));
      };
      multiply<4>(x, 16 * s, isum, weight, times(iload_s8(w.scales[s])));
    }
    add_isum<Neon>(w, x, isum, acc);
  }

  template <int M>
    requires(M % 2 == 0)
  DP_INLINE static void add_block(const PanelQ2_K& w, ActRows<ActBlock256> x, F (&acc)[M]) {
    I isum[M];
    for (int m = 0; m < M; ++m) isum[m] = izero();
#pragma GCC unroll 1
    for (int s = 0; s < 16; ++s) {
      const auto weight = [&](auto i, auto r) DP_INLINED { return two_bits_at(w.q, s, i, r); };
      const I word = shifted_right(iload(w.scales[s / 4]), 8 * (s % 4));
      multiply<4>(x, 16 * s, isum, weight, times(iand(word, iset1(0x0f))));
    }
    add_isum<Neon>(w, x, isum, acc);
  }

  template <int M>
    requires(M % 2 == 0)
  DP_INLINE static void add_block(const PanelQ3_K& w, ActRows<ActBlock256> x, F (&acc)[M]) {
    I isum[M];
    for (int m = 0; m < M; ++m) isum[m] = izero();
    const ScaleWords<Neon> scales = scales_of<Neon>(w);
#pragma GCC unroll 1
    for (int s = 0; s < 16; ++s) {
      const auto weight = [&](auto i, auto r) DP_INLINED {  // -4 .. 3
        const uint8x16_t high = moved(vld1q_u8(w.high[s % 2 * 4 + i] + 16 * r), 2 - s / 2);
        const uint8x16_t u = vorrq_u8(two_bits_at(w.q, s, i, r), vandq_u8(high, vdupq_n_u8(0x04)));
        return vsubq_u8(u, vdupq_n_u8(4));
      };
      const I word = iand(shifted_right(scales.word[s / 4], 8 * (s % 4)), iset1(0xff));
      multiply<4>(x, 16 * s, isum, weight, times(isub(word, iset1(32))));
    }
    add_isum<Neon>(w, x, isum, acc);
  }

  template <int M>
    requires(M % 2 == 0)
  DP_INLINE static void add_block(const PanelIQ4_NL& w, ActRows<ActBlock32> x, F (&acc)[M]) {
    I isum[M];
    for (int m = 0; m < M; ++m) isum[m] = izero();
    multiply<8>(x, 0, isum, values_at<kIq4Values>(w.q), kPlain);
    add_isum<Neon>(w, x, isum, acc);
  }

  template <int M>
    requires(M % 2 == 0)
  DP_INLINE static void add_block(const PanelMXFP4& w, ActRows<ActBlock32> x, F (&acc)[M]) {
    I isum[M];
    for (int m = 0; m < M; ++m) isum[m] = izero();
    multiply<8>(x, 0, isum, values_at<kMxfp4Values>(w.q), kPlain);
    add_isum<Neon>(w, x, isum, acc);
  }

  template <int M>
    requires(M % 2 == 0)
  DP_INLINE static void add_block(const PanelIQ4_XS& w, ActRows<ActBlock256> x, F (&acc)[M]) {
    I isum[M];
    for (int m = 0; m < M; ++m) isum[m] = izero();
    const I high = as_int(load_bf16(w.scales_high));  // in the upper halves of the lanes
#pragma GCC unroll 1
    for (int b = 0; b < 8; ++b) {
      const I scale = ior(iand(shifted_right(iload(w.scales_low), 4 * b), iset1(0x0f)),
                          iand(shifted_right(high, 12 + 2 * b), iset1(0x30)));
      multiply<8>(x, 32 * b, isum, values_at<kIq4Values>(w.q[b]), times(isub(scale, iset1(32))));
    }
    add_isum<Neon>(w, x, isum, acc);
  }
};

}  // namespace
}  // namespace draftproof
