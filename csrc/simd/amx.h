// The integer products of nine rows and more by int8 matrix tiles (AMX). Owns these products for
// the eight quantized types and the tiles they run on; everything else is the avx512 row's.
//
// A tile product multiplies up to sixteen rows of activations, 64 inputs deep, with a panel's
// sixteen outputs: a packed byte vector (lane = output, four inputs per lane) is one row of its
// second operand. Sub-block scales are folded into the weights beforehand, and a product that
// doesn't fit a byte is split into two planes, each exact: isum = high << shift + low. Tile sums
// wrap modulo 2^32 and isum fits int32, so they are the integers of block_products.h.
#pragma once

#include <cstddef>

#include "ops/linear.h"
#include "simd/avx512.h"

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

// How a block is multiplied: in steps of at most 64 inputs, with one or two planes of weights.
struct Planes {
  int steps;
  bool low_signed;
  int shift = 0;  // of the high plane; 0: there is none
  bool high_signed = false;
};
template <class Panel>
constexpr Planes kPlanes{1, false};  // Q4_1, Q5_1
template <>
constexpr Planes kPlanes<PanelQ4_0>{1, true};
template <>
constexpr Planes kPlanes<PanelQ5_0>{1, true};
template <>
constexpr Planes kPlanes<PanelQ8_0>{1, true};
template <>
constexpr Planes kPlanes<PanelQ4_K>{4, false, 3};
template <>
constexpr Planes kPlanes<PanelQ5_K>{4, false, 3};
template <>
constexpr Planes kPlanes<PanelQ6_K>{4, false, 8, true};

constexpr size_t kPlaneBytes = 16 * 64;

struct PlaneSlot {
  alignas(64) uint8_t bytes[2][kPlaneBytes];  // low and high plane of a step
  uint8_t apart[1024];  // slots 3 KiB apart are less often the same line to the store buffer
};

// --- weights of a step as planes -----------------------------------------------------------------

DP_INLINE void put(PlaneSlot& to, int plane, int row, __m512i v) {
  _mm512_store_si512(to.bytes[plane] + 64 * row, v);
}
DP_INLINE __m512i low_nibbles(__m512i v) { return Avx512::and_b(v, 0x0f); }
DP_INLINE __m512i high_nibbles(__m512i v) { return Avx512::shr_b<4>(v, 0x0f); }
// v + 16 where `bit` is set.
DP_INLINE __m512i with_fifth(__m512i v, __m512i bits, int bit) {
  const __mmask64 set = _mm512_test_epi8_mask(bits, _mm512_set1_epi8(static_cast<char>(1 << bit)));
  return _mm512_mask_add_epi8(v, set, v, _mm512_set1_epi8(16));
}

DP_INLINE void unpack_nibbles(const uint8_t (&q)[4][64], int offset, PlaneSlot& to) {
  const __m512i minus = _mm512_set1_epi8(static_cast<char>(offset));
  for (int j = 0; j < 4; ++j) {
    const __m512i v = Avx512::load_b(q[j]);
    put(to, 0, j, _mm512_sub_epi8(low_nibbles(v), minus));
    put(to, 0, 4 + j, _mm512_sub_epi8(high_nibbles(v), minus));
  }
}
DP_INLINE void unpack_fives(const uint8_t (&q)[4][64], const uint8_t (&high)[64], int offset,
                            PlaneSlot& to) {
  const __m512i minus = _mm512_set1_epi8(static_cast<char>(offset)), bits = Avx512::load_b(high);
  for (int j = 0; j < 4; ++j) {
    const __m512i v = Avx512::load_b(q[j]);
    put(to, 0, j, _mm512_sub_epi8(with_fifth(low_nibbles(v), bits, j), minus));
    put(to, 0, 4 + j, _mm512_sub_epi8(with_fifth(high_nibbles(v), bits, j + 4), minus));
  }
}
void unpack(const PanelQ4_0& w, int, PlaneSlot& to) { unpack_nibbles(w.q, 8, to); }
void unpack(const PanelQ4_1& w, int, PlaneSlot& to) { unpack_nibbles(w.q, 0, to); }
void unpack(const PanelQ5_0& w, int, PlaneSlot& to) { unpack_fives(w.q, w.high, 16, to); }
void unpack(const PanelQ5_1& w, int, PlaneSlot& to) { unpack_fives(w.q, w.high, 0, to); }
void unpack(const PanelQ8_0& w, int, PlaneSlot& to) {
  for (int j = 0; j < 8; ++j) put(to, 0, j, Avx512::load_b(w.q[j]));
}

// Scale s (0 .. 63) of a sub-block as s & 7 and s >> 3, in both int16 halves of each lane.
struct SplitScale {
  __m512i low, high;
};
DP_INLINE SplitScale split(__m512i s) {
  return {_mm512_and_si512(s, _mm512_set1_epi16(7)), _mm512_srli_epi16(s, 3)};
}
// Scales of sub-blocks 2 step and 2 step + 1.
DP_INLINE void scales_of_step(const int32_t (&words)[3][16], int step, SplitScale (&scales)[2]) {
  const SixBits<Avx512> all = scales_of<Avx512>(words);
  const __m512i word = step < 2 ? all.low : all.high;
  const __m512i half = step % 2 == 0 ? _mm512_and_si512(word, _mm512_set1_epi32(0xffff))
                                     : _mm512_srli_epi32(word, 16);
  const __m512i pair = _mm512_or_si512(half, _mm512_slli_epi32(half, 16));
  scales[0] = split(_mm512_and_si512(pair, _mm512_set1_epi16(0xff)));
  scales[1] = split(_mm512_srli_epi16(pair, 8));
}

// Weights of at most 31 times factors of at most 7 fit uint8: one int16 multiplication serves two.
void unpack(const PanelQ4_K& w, int step, PlaneSlot& to) {
  SplitScale s[2];
  scales_of_step(w.scales, step, s);
  // High nibbles stay where they are, times 16; with factors times 2^12 their product is the upper
  // half of an int32.
  const __m512i low = _mm512_slli_epi16(s[1].low, 12), high = _mm512_slli_epi16(s[1].high, 12);
  for (int j = 0; j < 8; ++j) {
    const __m512i v = Avx512::load_b(w.q[step][j]);
    const __m512i first = low_nibbles(v), second = Avx512::and_b(v, 0xf0);
    put(to, 0, j, _mm512_mullo_epi16(first, s[0].low));
    put(to, 1, j, _mm512_mullo_epi16(first, s[0].high));
    put(to, 0, 8 + j, _mm512_mulhi_epu16(second, low));
    put(to, 1, 8 + j, _mm512_mulhi_epu16(second, high));
  }
}

void unpack(const PanelQ5_K& w, int step, PlaneSlot& to) {
  SplitScale s[2];
  scales_of_step(w.scales, step, s);
  for (int j = 0; j < 8; ++j) {
    const __m512i v = Avx512::load_b(w.q[step][j]), bits = Avx512::load_b(w.high[j]);
    const __m512i first = with_fifth(low_nibbles(v), bits, 2 * step);
    const __m512i second = with_fifth(high_nibbles(v), bits, 2 * step + 1);
    put(to, 0, j, _mm512_mullo_epi16(first, s[0].low));
    put(to, 1, j, _mm512_mullo_epi16(first, s[0].high));
    put(to, 0, 8 + j, _mm512_mullo_epi16(second, s[1].low));
    put(to, 1, 8 + j, _mm512_mullo_epi16(second, s[1].high));
  }
}

// (u - 32) * s is -4064 .. 4096: its low byte, unsigned, and its high byte, -16 .. 16.
void unpack(const PanelQ6_K& w, int step, PlaneSlot& to) {
  const int n = step / 2;
  const __m512i down = _mm512_set1_epi16(static_cast<short>(4 * (step % 2)));
  const __m512i even_bytes = _mm512_set1_epi16(0xff), minus = _mm512_set1_epi16(32);
  const auto sub_block = [&](auto part) DP_INLINED {  // four of them, of sixteen inputs
    constexpr int h = part / 2;
    const __m512i scale = Avx512::iload_s8(w.scales[4 * step + part]);
    const __m512i s = _mm512_or_si512(_mm512_and_si512(scale, _mm512_set1_epi32(0xffff)),
                                      _mm512_slli_epi32(scale, 16));
    for (int i = 0; i < 4; ++i) {
      const int j = 4 * (part % 2) + i;
      const __m512i low = _mm512_srlv_epi16(Avx512::load_b(w.low[n][h][j]), down);
      const __m512i bits = _mm512_srlv_epi16(Avx512::load_b(w.high[n][j]), down);
      const __m512i u = _mm512_or_si512(low_nibbles(low), moved_bits<Avx512, 2 * h, 4>(bits, 0x30));
      const __m512i even =
          _mm512_mullo_epi16(_mm512_sub_epi16(_mm512_and_si512(u, even_bytes), minus), s);
      const __m512i odd = _mm512_mullo_epi16(_mm512_sub_epi16(_mm512_srli_epi16(u, 8), minus), s);
      put(to, 0, 8 * h + j,
          _mm512_or_si512(_mm512_and_si512(even, even_bytes), _mm512_slli_epi16(odd, 8)));
      put(to, 1, 8 * h + j,
          _mm512_or_si512(_mm512_srli_epi16(even, 8), _mm512_andnot_si512(even_bytes, odd)));
    }
  };
  unroll<4>(sub_block);
}

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
DP_INLINE void add_sums(const Panel& w, ActRows<Block> x, const TileSums& sums, int row,
                        float (*acc)[16]) {
  using S = Avx512;
  x.base += static_cast<size_t>(row) * x.stride;
  S::I isum[M];
  S::F out[M];
  each_row<M>([&](auto m) DP_INLINED {
    isum[m] = S::iload(sums.low[row + m]);
    if constexpr (kPlanes<Panel>.shift != 0)
      isum[m] = S::iadd(isum[m], S::ishl<kPlanes<Panel>.shift>(S::iload(sums.high[row + m])));
    out[m] = S::load(acc[row + m]);
  });
  if constexpr (requires { w.dmin; })
    add_scaled_minus<S>(w.d, w.dmin, w.scales, x, isum, out);
  else if constexpr (requires { w.m; })
    add_scaled_plus<S>(w.d, w.m, x, isum, out);
  else
    add_scaled<S>(w.d, x, isum, out);
  each_row<M>([&](auto m) DP_INLINED { S::store(acc[row + m], out[m]); });
}

template <class Panel, class Block>
void add_sums(const Panel& w, ActRows<Block> x, const TileSums& sums, int rows, float (*acc)[16]) {
  int row = 0;
  for (; row + 4 <= rows; row += 4) add_sums<Panel, Block, 4>(w, x, sums, row, acc);
  for (; row < rows; ++row) add_sums<Panel, Block, 1>(w, x, sums, row, acc);
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
      add_sums(panel[block], rows_at<Block>(a, first, block), sums[block % 2], rows, acc);
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
        add_sums(panel[b], rows_at<Block>(a, first + 16 * (i - 1), b), sums[(i - 1) % 2], 16,
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
  return k;
}

}  // namespace
}  // namespace draftproof
