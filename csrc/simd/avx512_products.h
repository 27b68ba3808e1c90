// Block products of AVX-512 that are quicker than the shim's: of Q4_K, whose scaled sums are added
// up as floats, because vpmulld is slow and keeps vpdpbusd waiting.
//
// A group of four sub-blocks is at most 4 * 63 * 15 * 127 * 32 = 15,361,920 < 2^24 in magnitude,
// and so is every sum on the way: integers that float32 holds exactly. The sum of exactly two of
// them rounds once, as float(isum) does.
#pragma once

#include "ops/block_steps.h"
#include "simd/avx512.h"

namespace draftproof {
namespace {

struct Avx512Products : Avx512 {
  template <int M>
  DP_INLINE static void add_block(const PanelQ4_K& w, ActRows<ActBlock256> x, F (&acc)[M]) {
    F group[2][M];
    const SixBits<Avx512> scales = scales_of<Avx512>(w.scales);
    unroll<8>([&](auto b) DP_INLINED {
      constexpr bool kHigh = b % 2 == 1;  // nibbles that stay where they are, 16 times too large
      I dot[M];
      each_row<M>([&](auto m) DP_INLINED { dot[m] = izero(); });
      unroll<8>([&](auto j) DP_INLINED {
        const B u = nibble<Avx512, kHigh>(load_b(w.q[b / 2][j]));
        each_row<M>([&](auto m)
                        DP_INLINED { dot[m] = dot4_u(dot[m], u, x[m].q + 32 * b + 4 * j); });
      });
      F s = to_float(scale_byte<Avx512, b % 4>(b < 4 ? scales.low : scales.high));
      if constexpr (kHigh) s = mul(s, set1(0x1p-4f));
      each_row<M>([&](auto m) DP_INLINED {
        F& sum = group[b / 4][m];
        sum = b % 4 == 0 ? mul(s, to_float(dot[m])) : fma(s, to_float(dot[m]), sum);
      });
    });
    add_sums<Avx512>(w, x, [&](auto m) DP_INLINED { return add(group[0][m], group[1][m]); }, acc);
  }
};

}  // namespace
}  // namespace draftproof
