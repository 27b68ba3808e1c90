// Block products of AVX2 that are quicker than the shim's: products of bytes are added up as int16
// pairs for as many steps as provably fit, and only then multiplied by the sub-block scale into
// int32.
//
// A pair of one step is at most 2 * u * 127 (u the greatest weight), and |q| <= 127:
//   four bits   8 steps: 8 * 2 * 15 * 127 = 30,480
//   five bits   4 steps: 4 * 2 * 31 * 127 = 31,496
//   six bits    2 steps: 2 * 2 * 63 * 127 = 32,004
//   two, three  4 steps: 4 * 2 * 7 * 127 = 7,112
//   MXFP4       4 steps of values 12 too large: 4 * 2 * 24 * 127 = 24,384
// so vpmaddubsw never saturates and the int16 sums never wrap. Everything is an exact integer,
// hence the same bits as the generic products of ops/block_products.h.
#pragma once

#include "ops/block_products.h"
#include "ops/lookup_products.h"
#include "ops/low_bit_products.h"
#include "simd/avx2.h"

namespace draftproof {
namespace {

struct Avx2Products : Avx2 {
  // Lane r: (w[4r] x[0] + w[4r+1] x[1], w[4r+2] x[2] + w[4r+3] x[3]) as int16.
  static I pairs(B w, const int8_t* x) {
    const __m256i v = broadcast4(x);
    return {_mm256_maddubs_epi16(w.a, v), _mm256_maddubs_epi16(w.b, v)};
  }
  static I add16(I x, I y) { return {_mm256_add_epi16(x.a, y.a), _mm256_add_epi16(x.b, y.b)}; }
  // acc + s * (both halves of p), s in 0..255 or -128..127.
  static I add_scaled16(I acc, I p, I s) {
    return {_mm256_add_epi32(acc.a, _mm256_madd_epi16(p.a, s.a)),
            _mm256_add_epi32(acc.b, _mm256_madd_epi16(p.b, s.b))};
  }
  static I both_halves(I s) {
    const I low = iand(s, iset1(0xffff));
    return ior(low, ishl<16>(s));
  }

  template <int M>
  DP_INLINE static void clear(I (&v)[M]) {
    each_row<M>([&](auto m) DP_INLINED { v[m] = izero(); });
  }

  template <int M>
  DP_INLINE static void add_block(const PanelQ4_K& w, ActRows<ActBlock256> x, F (&acc)[M]) {
    I isum[M];
    clear(isum);
    const SixBits<Avx2> scales = scales_of<Avx2>(w.scales);
    unroll<8>([&](auto b) DP_INLINED {
      constexpr bool kHigh = b % 2 == 1;
      I sum[M];
      clear(sum);
      unroll<8>([&](auto j) DP_INLINED {
        const B u = nibble<Avx2, kHigh>(load_b(w.q[b / 2][j]));
        each_row<M>([&](auto m)
                        DP_INLINED { sum[m] = add16(sum[m], pairs(u, x[m].q + 32 * b + 4 * j)); });
      });
      const I s = both_halves(scale_byte<Avx2, b % 4>(b < 4 ? scales.low : scales.high));
      each_row<M>([&](auto m) DP_INLINED { isum[m] = add_scaled16(isum[m], sum[m], s); });
    });
    add_isum<Avx2>(w, x, isum, acc);
  }

  template <int M>
  DP_INLINE static void add_block(const PanelQ5_K& w, ActRows<ActBlock256> x, F (&acc)[M]) {
    I isum[M];
    clear(isum);
    const SixBits<Avx2> scales = scales_of<Avx2>(w.scales);
    unroll<16>([&](auto half) DP_INLINED {
      constexpr int b = half / 2, first = half % 2 * 4;
      I sum[M];
      clear(sum);
      unroll<4>([&](auto i) DP_INLINED {
        constexpr int j = first + i;
        const B low = nibble < Avx2, b % 2 == 1 > (load_b(w.q[b / 2][j]));
        const B u = or_b(low, moved_bits<Avx2, b, 4>(load_b(w.high[j]), 0x10));
        each_row<M>([&](auto m)
                        DP_INLINED { sum[m] = add16(sum[m], pairs(u, x[m].q + 32 * b + 4 * j)); });
      });
      const I s = both_halves(scale_byte<Avx2, b % 4>(b < 4 ? scales.low : scales.high));
      each_row<M>([&](auto m) DP_INLINED { isum[m] = add_scaled16(isum[m], sum[m], s); });
    });
    add_isum<Avx2>(w, x, isum, acc);
  }

  // isum = sum of scale * (sum of u q - 32 sum of q); the second part from the stored sums.
  template <int M>
  DP_INLINE static void add_block(const PanelQ6_K& w, ActRows<ActBlock256> x, F (&acc)[M]) {
    I isum[M];
    clear(isum);
    unroll<16>([&](auto s) DP_INLINED {
      constexpr int n = s / 8, g = (s % 8) / 2, first = (s % 2) * 4;
      const I scale = iload_s8(w.scales[s]), scale16 = both_halves(scale);
      unroll<2>([&](auto half) DP_INLINED {
        I sum[M];
        unroll<2>([&](auto step) DP_INLINED {
          constexpr int i = half * 2 + step, j = first + i;
          const B v = load_b(w.low[n][g % 2][j]);
          const B low = g < 2 ? and_b(v, 0x0f) : shr_b<4>(v, 0x0f);
          const B u = or_b(low, moved_bits<Avx2, 2 * g, 4>(load_b(w.high[n][j]), 0x30));
          each_row<M>([&](auto m) DP_INLINED {
            const I p = pairs(u, x[m].q + 16 * s + 4 * i);
            sum[m] = step == 0 ? p : add16(sum[m], p);
          });
        });
        each_row<M>([&](auto m) DP_INLINED { isum[m] = add_scaled16(isum[m], sum[m], scale16); });
      });
      each_row<M>([&](auto m) DP_INLINED {
        isum[m] = iadd(isum[m], imul(scale, iset1(x[m].sum16_m32[s])));
      });
    });
    add_isum<Avx2>(w, x, isum, acc);
  }

  // isum[m] += scale * (sum of u q) of sub-block s; u = weight(i) are four vectors.
  template <int M, class Weight>
  DP_INLINE static void add_sub_block(ActRows<ActBlock256> x, int s, I scale, Weight weight,
                                      I (&isum)[M]) {
    I sum[M];
    unroll<4>([&](auto i) DP_INLINED {
      const B u = weight(i);
      each_row<M>([&](auto m) DP_INLINED {
        const I p = pairs(u, x[m].q + 16 * s + 4 * i);
        sum[m] = i == 0 ? p : add16(sum[m], p);
      });
    });
    const I both = both_halves(scale);
    each_row<M>([&](auto m) DP_INLINED { isum[m] = add_scaled16(isum[m], sum[m], both); });
  }

  template <int M>
  DP_INLINE static void add_block(const PanelQ2_K& w, ActRows<ActBlock256> x, F (&acc)[M]) {
    I isum[M];
    clear(isum);
    unroll<16>([&](auto s) DP_INLINED {
      const I scales = iand(iload(w.scales[s / 4]), iset1(0x0f0f0f0f));
      add_sub_block(
          x, s, scale_byte<Avx2, s % 4>(scales),
          [&](auto i) DP_INLINED { return two_bits<Avx2, s, i>(w.q); }, isum);
    });
    add_isum<Avx2>(w, x, isum, acc);
  }

  template <int M>
  DP_INLINE static void add_block(const PanelQ3_K& w, ActRows<ActBlock256> x, F (&acc)[M]) {
    I isum[M];
    clear(isum);
    const ScaleWords<Avx2> scales = scales_of<Avx2>(w);
    unroll<16>([&](auto s) DP_INLINED {
      add_sub_block(
          x, s, isub(scale_byte<Avx2, s % 4>(scales.word[s / 4]), iset1(32)),
          [&](auto i) DP_INLINED { return three_bits<Avx2, s, i>(w); }, isum);
    });
    take_off_fours<Avx2>(scales, x, isum);
    add_isum<Avx2>(w, x, isum, acc);
  }

  template <int M>
  DP_INLINE static void add_block(const PanelMXFP4& w, ActRows<ActBlock32> x, F (&acc)[M]) {
    I isum[M];
    start_at<Avx2>(-12, x, isum);
    const I one = iset1(0x00010001);
    unroll<2>([&](auto half) DP_INLINED {
      I sum[M];
      unroll<4>([&](auto j) DP_INLINED {
        const B v = load_b(w.q[j]);
        const B u = lookup(ValueTable<kMxfp4Values, 12>::kBytes.v, nibble < Avx2, half == 1 > (v));
        each_row<M>([&](auto m) DP_INLINED {
          const I p = pairs(u, x[m].q + 16 * half + 4 * j);
          sum[m] = j == 0 ? p : add16(sum[m], p);
        });
      });
      each_row<M>([&](auto m) DP_INLINED { isum[m] = add_scaled16(isum[m], sum[m], one); });
    });
    add_isum<Avx2>(w, x, isum, acc);
  }
};

}  // namespace
}  // namespace draftproof
