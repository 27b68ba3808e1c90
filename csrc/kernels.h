// The whole kernel API. A kernel knows pointers and shapes; it knows no model, sequence or thread.
//
// The contract: what a kernel writes for a row depends on that row's inputs and on the shape of the
// operation, never on how many rows it is given, how the work is split, which thread runs it, or
// which row of the dispatch table it comes from. Every reduction has one order: either lanes are
// outputs and the reduction index ascends inside each lane, or element i goes to virtual lane i mod
// 16, each lane adds in ascending order, and lanes are folded +8, +4, +2, +1. Float operations are
// IEEE float32, nearest even; a fused multiply-add is one only where it is written. No library
// function.
#pragma once

#include <cstddef>
#include <cstdint>

#include "packed.h"

namespace draftproof {

// Row tiles of the linear kernels: 8, 4, 2 or 1 rows for quantized types, fewer for float types.
inline constexpr int kNumTileSizes = 4;

// One panel of a linear weight times `rows` activation rows.
struct PanelArgs {
  const uint8_t* panel;  // packed.h
  int64_t blocks;        // in_features / block_inputs
  const uint8_t* act;    // [rows] ActBlock32 / ActBlock256 / float, as the type's form says
  size_t act_stride;     // bytes from row to row
  int rows;
  int outputs;            // of this panel: 1 .. panel_outputs
  float* out;             // [rows, out_stride]
  size_t out_stride;      // floats
  const float* bias;      // [outputs] or nullptr: y = acc + bias
  const float* residual;  // [rows, residual_stride] or nullptr: y = y + residual
  size_t residual_stride;
  uint64_t* tile_calls;  // [kNumTileSizes] calls by tile: 8 rows (float 6, amx 9 to 16), 4, 2, 1
};

enum class KvType : int32_t { kF32 = 0, kF16 = 1, kBF16 = 2, kQ8 = 3 };

inline constexpr int kPagePositions = 64;
inline constexpr int kSpan = 512;  // positions per attention span: part of the arithmetic

// Where keys and values of one layer and KV head lie inside a page: keys in blocks of 16 positions,
// [4 blocks][head_dim][16], then values, [64][value_stride]; value_stride = head_dim up to a
// multiple of 16, padding is zero. kQ8: int8 in the same places, then float32 scales per 32
// dimensions, of keys [4 blocks][scales][16], of values [64][scales]. A row is quantized once, when
// it is stored (scale amax / 127, nearest even); a kernel reads float32(scale * q).
inline constexpr int kQuantBlock = 32;
inline int quant_blocks(int head_dim) { return (head_dim + kQuantBlock - 1) / kQuantBlock; }

struct KvView {
  uint8_t* pages;
  size_t page_bytes;
  size_t head_offset;  // of this layer and head within a page
  KvType type;
  int head_dim;
  int value_stride;
};

// Attention of a tile of consecutive rows of one sequence, one KV head, one span of 512 positions.
// A pair is (row, query head): pair = row * group + head. Writes for every pair the span's maximum
// m, sum l and values o, unless the span lies behind the row's position.
struct SpanArgs {
  KvView kv;
  const int32_t* block_table;  // pages of the sequence
  const float* q;              // [rows, q_stride], the first query head of the group
  size_t q_stride;
  int rows;
  int group;               // query heads per KV head
  int64_t first_position;  // KV index of row 0
  int64_t seen;            // positions that every row sees; 0: those up to its own
  int64_t span;            // positions 512 span ..
  float scale;
  float* scores;          // scratch [rows * group, 512]
  float* partial;         // [rows * group, partial_stride]: m, l, then o from offset 16
  size_t partial_stride;  // 16 + value_stride
};

// One row of the dispatch table.
struct Kernels {
  const char* name;

  // y[panel outputs of every row]; indexed by TypeInfo::index.
  void (*linear[kNumWeightTypes])(const PanelArgs&);

  // Quantizes x[n]; returns false if a value is not finite (the output is then zero).
  bool (*quantize32)(const float* x, int64_t n, ActBlock32* out);
  bool (*quantize256)(const float* x, int64_t n, ActBlock256* out);

  // y = (x * r) * w with r = 1 / sqrt(sum(x^2) / n + eps), for `groups` groups of n values.
  void (*rms_norm)(const float* x, const float* weight, int n, int groups, float eps, float* out);

  // y = fma((x - mean) * r, w, b) with r = 1 / sqrt(sum((x - mean)^2) / n + eps).
  void (*layer_norm)(const float* x, const float* weight, const float* bias, int n, float eps,
                     float* out);

  // GELU, by its tanh formula or exactly: simd/gelu_spec.h.
  void (*gelu_tanh)(const float* x, int64_t n, float* out);
  void (*gelu_erf)(const float* x, int64_t n, float* out);

  // In place on `heads` heads: half-split rotation by cos, sin [head_dim / 2].
  void (*rope)(float* x, int heads, int head_dim, const float* cos, const float* sin);

  // out = (g / (1 + exp(-g))) * u
  void (*swiglu)(const float* g, const float* u, int64_t n, float* out);

  // p = e / sum(e) with e = exp(x - max(x)), the sum in virtual lanes; false if it is not finite.
  bool (*softmax)(const float* x, int n, float* p);

  // out = y + residual (or y, without one), y = fma(p[i], e[i], y) from +0, i ascending.
  void (*mix)(const float* p, const float* const* e, int count, const float* residual, int64_t n,
              float* out);

  // out[i] = exp(x[i] / divisor - shift), for the sampler.
  void (*exp_row)(const float* x, int64_t n, float divisor, float shift, float* out);

  // Stores k, v [head_dim] at `position`; false if a value is not finite.
  bool (*store_kv)(const KvView& kv, const int32_t* block_table, int64_t position, const float* k,
                   const float* v);

  void (*attend_span)(const SpanArgs&);

  // Takes a span's m, l, o into the running state of a pair (same layout). The first span of a pair
  // is copied by the caller.
  void (*combine_span)(float* state, const float* partial, int value_stride);

  // out[head_dim] = o / l; false if l is not finite (a score or value was not).
  bool (*finish_attention)(const float* state, int head_dim, float* out);
};

const Kernels& scalar_kernels();
#if defined(DRAFTPROOF_X86)
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();
const Kernels& amx_kernels();
#elif defined(DRAFTPROOF_ARM)
const Kernels& neon_kernels();
const Kernels& neon_i8mm_kernels();
#endif

}  // namespace draftproof
