// The integer products of nine rows and more by int8 matrix tiles (AMX). Owns the loops over a
// panel of the quantized types and the tiles they run on; everything else is the avx512 row's.
//
// A tile product multiplies up to sixteen rows of activations, 64 inputs deep, with a panel's
// sixteen outputs: a packed byte vector (lane = output, four inputs per lane) is one row of its
// second operand, a plane (amx_planes.h). Tile sums wrap modulo 2^32 and isum fits int32, so they
// are the integers of the vector products.
#pragma once

#include <cstddef>

#include "simd/amx_planes.h"

namespace draftproof {
namespace {

// The four tiles in use; with more of them in flight, loads get slower.
enum Tile : int { kLowSum, kHighSum, kActivations, kWeights };

// The tile registers of this thread, for as long as the object lives: configured at each use,
// because other libraries of the process may use them too, and released, because a thread switch
// saves what is in use. Inline assembly: the compilers' tile intrinsics don't say which memory they
// read, so that stores before them get lost.
class HardwareTiles {
 public:
  // Sums are [rows][16] int32, activations [rows][depth] bytes, weights [depth / 4][64] bytes.
  HardwareTiles(int rows, int depth) {
    struct {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } config;
    static_assert(sizeof config == 64);
    config.row_bytes[kLowSum] = config.row_bytes[kHighSum] = config.row_bytes[kWeights] = 64;
    config.row_bytes[kActivations] = static_cast<uint16_t>(depth);
    config.rows[kLowSum] = config.rows[kHighSum] = config.rows[kActivations] =
        static_cast<uint8_t>(rows);
    config.rows[kWeights] = static_cast<uint8_t>(depth / 4);
    __asm__ volatile("ldtilecfg %0" : : "m"(config));
  }
  ~HardwareTiles() { __asm__ volatile("tilerelease"); }
  HardwareTiles(const HardwareTiles&) = delete;
  HardwareTiles& operator=(const HardwareTiles&) = delete;

  template <Tile kTile>
  void zero() {
    __asm__ volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  template <Tile kTile>
  void load(const void* from, size_t stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2"
                     :
                     : "r"(from), "r"(stride), "i"(kTile)
                     : "memory");
  }
  template <Tile kTile>
  void store(void* to, size_t stride) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)"
                     :
                     : "r"(to), "r"(stride), "i"(kTile)
                     : "memory");
  }
  // Sums += activations (signed) * weights. The assembler's order is the manual's reversed.
  template <Tile kSum, bool kSignedWeights>
  void multiply() {
    if constexpr (kSignedWeights)
      __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0"
                       :
                       : "i"(kSum), "i"(kActivations), "i"(kWeights));
    else
      __asm__ volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0"
                       :
                       : "i"(kSum), "i"(kActivations), "i"(kWeights));
  }
};

// --- products, float steps -----------------------------------------------------------------------

struct TileSums {
  alignas(64) int32_t low[16][16], high[16][16];  // [row][output]
};

// Adds one step to the sums.
template <class Panel, class Block, class Tiles>
void multiply_step(Tiles& tiles, const PlaneSlot& planes, ActRows<Block> x, int step) {
  constexpr Planes kPlan = kPlanes<Panel>;
  if (step == 0) {
    tiles.template zero<kLowSum>();
    if constexpr (kPlan.shift != 0) tiles.template zero<kHighSum>();
  }
  tiles.template load<kActivations>(x[0].q + 64 * step, x.stride);
  tiles.template load<kWeights>(planes.bytes[0], 64);
  tiles.template multiply<kLowSum, kPlan.low_signed>();
  if constexpr (kPlan.shift != 0) {
    tiles.template load<kWeights>(planes.bytes[1], 64);
    tiles.template multiply<kHighSum, kPlan.high_signed>();
  }
}

template <class Panel, class Tiles>
void store_sums(Tiles& tiles, TileSums& to) {
  tiles.template store<kLowSum>(to.low, 64);
  if constexpr (kPlanes<Panel>.shift != 0) tiles.template store<kHighSum>(to.high, 64);
}

// The float steps of M rows from `row` on.
template <class Panel, class Block, int M>
DP_INLINE void add_tile_sums(const Panel& w, ActRows<Block> x, const TileSums& sums, int row,
                             float (*acc)[16]) {
  using S = Avx512;
  x.base += static_cast<size_t>(row) * x.stride;
  S::I isum[M];
  S::F out[M];
  each_row<M>([&](auto m) DP_INLINED {
    isum[m] = S::iload(sums.low[row + m]);
    if constexpr (kPlanes<Panel>.negated) isum[m] = S::isub(S::izero(), isum[m]);
    if constexpr (kPlanes<Panel>.shift != 0)
      isum[m] = S::iadd(isum[m], S::ishl<kPlanes<Panel>.shift>(S::iload(sums.high[row + m])));
    out[m] = S::load(acc[row + m]);
  });
  add_isum<S>(w, x, isum, out);
  each_row<M>([&](auto m) DP_INLINED { S::store(acc[row + m], out[m]); });
}

template <class Panel, class Block>
void add_tile_sums(const Panel& w, ActRows<Block> x, const TileSums& sums, int rows,
                   float (*acc)[16]) {
  int row = 0;
  for (; row + 4 <= rows; row += 4) add_tile_sums<Panel, Block, 4>(w, x, sums, row, acc);
  for (; row < rows; ++row) add_tile_sums<Panel, Block, 1>(w, x, sums, row, acc);
}

template <class Block>
DP_INLINE ActRows<Block> rows_at(const PanelArgs& a, int row, int64_t block) {
  return {
      a.act + static_cast<size_t>(row) * a.act_stride + static_cast<size_t>(block) * sizeof(Block),
      a.act_stride};
}

template <class Block>
constexpr int kDepth = sizeof(Block::q) < 64 ? static_cast<int>(sizeof(Block::q)) : 64;

// --- loops over a panel --------------------------------------------------------------------------

// Up to sixteen rows. Unpacking, products and float steps of different blocks overlap: a step is
// multiplied two steps after its planes were stored, and the sums of a block are read one later.
template <class Tiles, class Panel, class Block>
void one_tile(const PanelArgs& a, int first, int rows) {
  constexpr int kSteps = kPlanes<Panel>.steps, kSlots = 4;
  const auto* panel = reinterpret_cast<const Panel*>(a.panel);
  PlaneSlot slots[kSlots];
  TileSums sums[2];
  alignas(64) float acc[16][16] = {};
  Tiles tiles(rows, kDepth<Block>);
  const int64_t steps = a.blocks * kSteps;
  for (int64_t t = 0; t < steps + 3; ++t) {
    if (t < steps) {
      const Panel& w = panel[t / kSteps];
      if (first == 0 && t % kSteps == 0) prefetch_ahead<Avx512>(w);
      unpack(w, static_cast<int>(t % kSteps), slots[t % kSlots]);
    }
    if (const int64_t u = t - 2; u >= 0 && u < steps) {
      const int64_t block = u / kSteps;
      multiply_step<Panel>(tiles, slots[u % kSlots], rows_at<Block>(a, first, block),
                           static_cast<int>(u % kSteps));
      if (u % kSteps == kSteps - 1) store_sums<Panel>(tiles, sums[block % 2]);
    }
    if (const int64_t v = t - 3; v >= 0 && v % kSteps == kSteps - 1) {
      const int64_t block = v / kSteps;
      add_tile_sums(panel[block], rows_at<Block>(a, first, block), sums[block % 2], rows, acc);
    }
  }
  for (int m = 0; m < rows; ++m) write_outputs<Avx512>(a, first + m, 0, Avx512::load(acc[m]));
}

// Several tiles of sixteen rows, which share the planes of each block.
constexpr int kManyTiles = 4;

template <class Tiles, class Panel, class Block>
void many_tiles(const PanelArgs& a, int first, int num_tiles) {
  constexpr int kSteps = kPlanes<Panel>.steps;
  const auto* panel = reinterpret_cast<const Panel*>(a.panel);
  PlaneSlot slots[kSteps];
  TileSums sums[2];
  alignas(64) float acc[16 * kManyTiles][16] = {};
  Tiles tiles(16, kDepth<Block>);
  for (int64_t b = 0; b < a.blocks; ++b) {
    if (first == 0) prefetch_ahead<Avx512>(panel[b]);
    for (int s = 0; s < kSteps; ++s) unpack(panel[b], s, slots[s]);
    for (int i = 0; i <= num_tiles; ++i) {  // the sums of a tile are read while the next is made
      if (i < num_tiles) {
        for (int s = 0; s < kSteps; ++s)
          multiply_step<Panel>(tiles, slots[s], rows_at<Block>(a, first + 16 * i, b), s);
        store_sums<Panel>(tiles, sums[i % 2]);
      }
      if (i > 0)
        add_tile_sums(panel[b], rows_at<Block>(a, first + 16 * (i - 1), b), sums[(i - 1) % 2], 16,
                      acc + 16 * (i - 1));
    }
  }
  for (int m = 0; m < 16 * num_tiles; ++m)
    write_outputs<Avx512>(a, first + m, 0, Avx512::load(acc[m]));
}

// Below this many rows the vector products are as fast. Tests take the tiles from one row on.
constexpr int kLeastTileRows = 9;

template <class Tiles, int kLeastRows, class Panel, class Block, int kTypeIndex>
void tile_panel(const PanelArgs& a) {
  int row = 0;
  for (int left = a.rows; left >= kLeastRows; left = a.rows - row) {
    const int num_tiles = left < 32 ? 1 : left / 16 < kManyTiles ? left / 16 : kManyTiles;
    const int rows = left < 16 ? left : 16 * num_tiles;
    if (num_tiles == 1)
      one_tile<Tiles, Panel, Block>(a, row, rows);
    else
      many_tiles<Tiles, Panel, Block>(a, row, num_tiles);
    row += rows;
    a.tile_calls[0] += static_cast<uint64_t>(num_tiles);
  }
  if (row == a.rows) return;
  PanelArgs rest = a;
  rest.rows -= row;
  rest.act += static_cast<size_t>(row) * a.act_stride;
  rest.out += static_cast<size_t>(row) * a.out_stride;
  if (rest.residual != nullptr) rest.residual += static_cast<size_t>(row) * a.residual_stride;
  avx512_kernels().linear[kTypeIndex](rest);
}

// The avx512 row with the linear kernels of quantized types replaced.
template <class Tiles, int kLeastRows = kLeastTileRows>
Kernels make_tile_kernels(const char* name) {
  Kernels k = avx512_kernels();
  k.name = name;
  k.linear[3] = tile_panel<Tiles, kLeastRows, PanelQ4_0, ActBlock32, 3>;
  k.linear[4] = tile_panel<Tiles, kLeastRows, PanelQ4_1, ActBlock32, 4>;
  k.linear[5] = tile_panel<Tiles, kLeastRows, PanelQ5_0, ActBlock32, 5>;
  k.linear[6] = tile_panel<Tiles, kLeastRows, PanelQ5_1, ActBlock32, 6>;
  k.linear[7] = tile_panel<Tiles, kLeastRows, PanelQ8_0, ActBlock32, 7>;
  k.linear[8] = tile_panel<Tiles, kLeastRows, PanelQ4_K, ActBlock256, 8>;
  k.linear[9] = tile_panel<Tiles, kLeastRows, PanelQ5_K, ActBlock256, 9>;
  k.linear[10] = tile_panel<Tiles, kLeastRows, PanelQ6_K, ActBlock256, 10>;
  k.linear[11] = tile_panel<Tiles, kLeastRows, PanelQ2_K, ActBlock256, 11>;
  k.linear[12] = tile_panel<Tiles, kLeastRows, PanelQ3_K, ActBlock256, 12>;
  k.linear[13] = tile_panel<Tiles, kLeastRows, PanelIQ4_NL, ActBlock32, 13>;
  k.linear[14] = tile_panel<Tiles, kLeastRows, PanelIQ4_XS, ActBlock256, 14>;
  k.linear[15] = tile_panel<Tiles, kLeastRows, PanelMXFP4, ActBlock32, 15>;
  return k;
}

}  // namespace
}  // namespace draftproof
