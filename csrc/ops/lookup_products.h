// Products of the types whose four bits stand for one of sixteen values: IQ4_NL, IQ4_XS, MXFP4.
// Bounds: IQ4_NL 32 * 127 * 127 = 516,128; IQ4_XS 8 * 32 * 516,128 = 132,128,768; MXFP4 (values
// doubled, scale halved) 32 * 12 * 127 = 48,768. With the values of IQ4 128 too large, as dot4_u
// may want them, a sub-block stays below 32 * 241 * 127 + 128 * 4,064.
#pragma once

#include "ops/block_products.h"

namespace draftproof {
namespace {

// The values plus an offset that makes them what the shim multiplies.
template <const int8_t (&kValues)[16], int kOffset>
struct ValueTable {
  struct Bytes {
    alignas(16) uint8_t v[16];
  };
  static constexpr Bytes kBytes = [] {
    Bytes out{};
    for (int i = 0; i < 16; ++i) out.v[i] = static_cast<uint8_t>(kValues[i] + kOffset);
    return out;
  }();
};

// dot[m] += the products of 32 inputs from `first` on, by dot4 = S::dot4_u or S::dot4_s.
template <class S, bool kSigned, class Table, class Block, int M>
DP_INLINE void dot_values32(const uint8_t (&q)[4][64], ActRows<Block> x, int first,
                            typename S::I (&dot)[M]) {
  const auto add = [](auto sum, auto w, const int8_t* y) DP_INLINED {
    if constexpr (kSigned)
      return S::dot4_s(sum, w, y);
    else
      return S::dot4_u(sum, w, y);
  };
  unroll<4>([&](auto j) DP_INLINED {
    const auto v = S::load_b(q[j]);
    const auto low = S::lookup(Table::kBytes.v, S::and_b(v, 0x0f));
    const auto high = S::lookup(Table::kBytes.v, S::template shr_b<4>(v, 0x0f));
    each_row<M>([&](auto m) DP_INLINED {
      dot[m] = add(dot[m], low, x[m].q + first + 4 * j);
      dot[m] = add(dot[m], high, x[m].q + first + 16 + 4 * j);
    });
  });
}

// Where dot4_s would have to make its weights unsigned, the table has them so already.
template <class S, class Block, int M>
DP_INLINE void dot_iq4(const uint8_t (&q)[4][64], ActRows<Block> x, int first,
                       typename S::I (&dot)[M]) {
  dot_values32<S, S::kSignedBias == 0, ValueTable<kIq4Values, S::kSignedBias>>(q, x, first, dot);
}

template <class S, int M>
DP_INLINE void add_block(const PanelIQ4_NL& w, ActRows<ActBlock32> x, typename S::F (&acc)[M]) {
  typename S::I isum[M];
  start_at<S>(-S::kSignedBias, x, isum);
  dot_iq4<S>(w.q, x, 0, isum);
  add_isum<S>(w, x, isum, acc);
}

template <class S, int M>
DP_INLINE void add_block(const PanelMXFP4& w, ActRows<ActBlock32> x, typename S::F (&acc)[M]) {
  typename S::I isum[M];
  start_at<S>(-12, x, isum);
  dot_values32<S, false, ValueTable<kMxfp4Values, 12>>(w.q, x, 0, isum);
  add_isum<S>(w, x, isum, acc);
}

// Scale of sub-block b, -32 .. 31.
template <class S, int b>
DP_INLINE typename S::I scale_of_sub_block(const PanelIQ4_XS& w) {
  const auto low = S::iand(S::template ishr<4 * b>(S::iload(w.scales_low)), S::iset1(0x0f));
  const auto words = S::as_int(S::load_bf16(w.scales_high));  // in the upper halves of the lanes
  const auto high = S::iand(S::template ishr<12 + 2 * b>(words), S::iset1(0x30));
  return S::isub(S::ior(low, high), S::iset1(32));
}

template <class S, int M>
DP_INLINE void add_block(const PanelIQ4_XS& w, ActRows<ActBlock256> x, typename S::F (&acc)[M]) {
  constexpr int kPlace[8] = {0, 2, 1, 3, 4, 6, 5, 7};  // of sums over 32
  typename S::I isum[M];
  each_row<M>([&](auto m) DP_INLINED { isum[m] = S::izero(); });
  unroll<8>([&](auto b) DP_INLINED {
    typename S::I dot[M];
    each_row<M>([&](auto m)
                    DP_INLINED { dot[m] = S::iset1(-S::kSignedBias * x[m].sum32[kPlace[b]]); });
    dot_iq4<S>(w.q[b], x, 32 * b, dot);
    const auto scale = scale_of_sub_block<S, b>(w);
    each_row<M>([&](auto m) DP_INLINED { isum[m] = S::iadd(isum[m], S::imul(scale, dot[m])); });
  });
  add_isum<S>(w, x, isum, acc);
}

}  // namespace
}  // namespace draftproof
