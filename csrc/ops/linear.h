// Linear layers: one panel times any number of rows, in tiles of rows that share each unpacked
// weight. A tile's size changes how often a weight is unpacked, never the operations of a row.
#pragma once

#include "kernels.h"
#include "ops/block_products.h"
#include "ops/lookup_products.h"
#include "ops/low_bit_products.h"

namespace draftproof {
namespace {

// y = acc (+ bias) (+ residual) for one row and up to sixteen outputs.
template <class S>
DP_INLINE void write_outputs(const PanelArgs& a, int row, int first, typename S::F acc) {
  const int n = a.outputs - first < kLanes ? a.outputs - first : kLanes;
  if (n <= 0) return;
  if (a.bias != nullptr) acc = S::add(acc, S::load_n(a.bias + first, n));
  if (a.residual != nullptr) {
    const float* r = a.residual + static_cast<size_t>(row) * a.residual_stride + first;
    acc = S::add(acc, S::load_n(r, n));
  }
  S::store_n(a.out + static_cast<size_t>(row) * a.out_stride + first, acc, n);
}

// Weights stream through once, at a pace that the processor's own prefetcher loses when many rows
// are multiplied: ask for them this many bytes ahead.
constexpr size_t kPrefetchDistance = 8192;

template <class S, class Panel>
DP_INLINE void prefetch_ahead(const Panel& block) {
  const auto* p = reinterpret_cast<const uint8_t*>(&block) + kPrefetchDistance;
  for (size_t i = 0; i < sizeof(Panel); i += 64) S::prefetch(p + i);
}

template <class S, class Panel, class Block, int M>
void quantized_tile(const PanelArgs& a, int row) {
  if constexpr (M > S::kTileRows) {  // too many accumulators for the registers: halves are faster
    quantized_tile<S, Panel, Block, M / 2>(a, row);
    quantized_tile<S, Panel, Block, M / 2>(a, row + M / 2);
    return;
  }
  const auto* panel = reinterpret_cast<const Panel*>(a.panel);
  const uint8_t* act = a.act + static_cast<size_t>(row) * a.act_stride;
  typename S::F acc[M];
  each_row<M>([&](auto m) DP_INLINED { acc[m] = S::zero(); });
  for (int64_t b = 0; b < a.blocks; ++b) {
    if (row == 0) prefetch_ahead<S>(panel[b]);  // later tiles find the panel in cache
    const ActRows<Block> x{act + static_cast<size_t>(b) * sizeof(Block), a.act_stride};
    // A shim may bring a product of its own for a type and a tile size.
    if constexpr (requires { S::add_block(panel[b], x, acc); })
      S::add_block(panel[b], x, acc);
    else
      add_block<S>(panel[b], x, acc);
  }
  each_row<M>([&](auto m) DP_INLINED { write_outputs<S>(a, row + m, 0, acc[m]); });
}

template <class S, class Panel, class Block>
void quantized_panel(const PanelArgs& a) {
  int row = 0;
  for (; row + 8 <= a.rows; row += 8, ++a.tile_calls[0]) quantized_tile<S, Panel, Block, 8>(a, row);
  if (row + 4 <= a.rows) {
    quantized_tile<S, Panel, Block, 4>(a, row);
    row += 4;
    ++a.tile_calls[1];
  }
  if (row + 2 <= a.rows) {
    quantized_tile<S, Panel, Block, 2>(a, row);
    row += 2;
    ++a.tile_calls[2];
  }
  if (row < a.rows) {
    quantized_tile<S, Panel, Block, 1>(a, row);
    ++a.tile_calls[3];
  }
}

template <class S>
DP_INLINE typename S::F widen(const float* p) {
  return S::load(p);
}
struct Half {
  uint16_t bits;
};
struct Bfloat {
  uint16_t bits;
};
template <class S>
DP_INLINE typename S::F widen(const Half* p) {
  return S::load_f16(&p->bits);
}
template <class S>
DP_INLINE typename S::F widen(const Bfloat* p) {
  return S::load_bf16(&p->bits);
}

// M rows, kVectors of the panel's four vectors: one fma chain per output, inputs ascending.
template <class S, class Word, int M, int kVectors>
void float_tile(const PanelArgs& a, int row, int vector) {
  const auto* w = reinterpret_cast<const Word*>(a.panel) + kLanes * vector;
  const auto* x = reinterpret_cast<const float*>(a.act + static_cast<size_t>(row) * a.act_stride);
  const size_t stride = a.act_stride / sizeof(float);
  typename S::F acc[M][kVectors];
  unroll<M * kVectors>([&](auto i) DP_INLINED { acc[i / kVectors][i % kVectors] = S::zero(); });
  for (int64_t k = 0; k < a.blocks; ++k, w += 64) {
    typename S::F wide[kVectors];
    unroll<kVectors>([&](auto v) DP_INLINED { wide[v] = widen<S>(w + kLanes * v); });
    each_row<M>([&](auto m) DP_INLINED {
      const auto xk = S::set1(x[static_cast<size_t>(m) * stride + static_cast<size_t>(k)]);
      unroll<kVectors>([&](auto v) DP_INLINED { acc[m][v] = S::fma(xk, wide[v], acc[m][v]); });
    });
  }
  unroll<M * kVectors>([&](auto i) DP_INLINED {
    write_outputs<S>(a, row + i / kVectors, kLanes * (vector + i % kVectors),
                     acc[i / kVectors][i % kVectors]);
  });
}

template <class S, class Word>
void float_panel(const PanelArgs& a) {
  // As many chains as the registers hold: 6 rows x 4 vectors, or 2 rows x 2 vectors twice.
  constexpr bool kWide = S::kAccumulators >= 24;
  constexpr int kRows = kWide ? 6 : 2, kVectors = kWide ? 4 : 2;
  int row = 0;
  for (; row + kRows <= a.rows; row += kRows, ++a.tile_calls[kWide ? 0 : 2])
    for (int v = 0; v < 4; v += kVectors) float_tile<S, Word, kRows, kVectors>(a, row, v);
  if constexpr (kWide) {
    for (; row + 2 <= a.rows; row += 2, ++a.tile_calls[2]) float_tile<S, Word, 2, 4>(a, row, 0);
  }
  for (; row < a.rows; ++row, ++a.tile_calls[3]) float_tile<S, Word, 1, 4>(a, row, 0);
}

}  // namespace
}  // namespace draftproof
