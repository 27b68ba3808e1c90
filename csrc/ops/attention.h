// Attention of a tile of rows over one span of 512 positions, and how spans are put together.
//
// Scores: lanes are positions, head_dim ascending, one fma chain each, then times the scale.
// Values: lanes are head_dim, positions ascending, one fma chain each. Rows and heads of a tile
// share the loads of K and V, never their sums. Positions behind a row's own are never read into
// its sums.
#pragma once

#include <cmath>
#include <limits>

#include "kernels.h"
#include "ops/exp.h"
#include "ops/linear.h"
#include "ops/rows.h"
#include "simd/half.h"

namespace draftproof {
namespace {

template <class Word>
const Word* head_of_page(const SpanArgs& a, int64_t position) {
  const auto page = static_cast<size_t>(a.block_table[position / kPagePositions]);
  return reinterpret_cast<const Word*>(a.kv.pages + page * a.kv.page_bytes + a.kv.head_offset);
}

// K lines of the block of sixteen positions that starts at `position`: [head_dim][16].
template <class Word>
const Word* key_block(const SpanArgs& a, int64_t position) {
  return head_of_page<Word>(a, position) +
         (position % kPagePositions) / kLanes * static_cast<int64_t>(a.kv.head_dim) * kLanes;
}
// V line of a position: [value_stride].
template <class Word>
const Word* value_line(const SpanArgs& a, int64_t position) {
  return head_of_page<Word>(a, position) + static_cast<int64_t>(kPagePositions) * a.kv.head_dim +
         (position % kPagePositions) * static_cast<int64_t>(a.kv.value_stride);
}

// Q8_0: where the scales of keys stand, [4 blocks of positions][blocks of 32 dims][16], and behind
// them those of values, [64][blocks of 32 dims].
struct Quant {
  int8_t q;
};
inline const float* quant_scales(const KvView& kv, const void* head) {
  return reinterpret_cast<const float*>(static_cast<const uint8_t*>(head) +
                                        kPagePositions * (kv.head_dim + kv.value_stride));
}

// Sixteen positions of K: line d holds dimension d of all of them.
template <class S, class Word>
struct KeyLines {
  const Word* words;
  KeyLines() = default;
  KeyLines(const SpanArgs& a, int64_t position) : words(key_block<Word>(a, position)) {}
  DP_INLINE typename S::F line(int d) const { return widen<S>(words + kLanes * d); }
};
template <class S>
struct KeyLines<S, Quant> {
  const Quant* words;
  const float* scales;
  KeyLines() = default;
  KeyLines(const SpanArgs& a, int64_t position)
      : words(key_block<Quant>(a, position)),
        scales(quant_scales(a.kv, head_of_page<Quant>(a, position)) +
               position % kPagePositions / kLanes * quant_blocks(a.kv.head_dim) * kLanes) {}
  DP_INLINE typename S::F line(int d) const {
    return S::mul(S::load(scales + d / kQuantBlock * kLanes),
                  S::to_float(S::iload_s8(&words[kLanes * d].q)));
  }
};

// V of one position after the other within a page, from dimension `dim` on.
template <class S, class Word>
struct ValueLines {
  const Word* words;
  int stride;
  ValueLines(const SpanArgs& a, int64_t position, int dim)
      : words(value_line<Word>(a, position) + dim), stride(a.kv.value_stride) {}
  DP_INLINE typename S::F vector(int v) const { return widen<S>(words + kLanes * v); }
  DP_INLINE void next() { words += stride; }
};
template <class S>
struct ValueLines<S, Quant> {
  const Quant* words;
  const float* scales;
  int stride, blocks, dim;
  ValueLines(const SpanArgs& a, int64_t position, int first)
      : words(value_line<Quant>(a, position) + first),
        scales(quant_scales(a.kv, head_of_page<Quant>(a, position)) +
               (kPagePositions + position % kPagePositions) * quant_blocks(a.kv.head_dim)),
        stride(a.kv.value_stride),
        blocks(quant_blocks(a.kv.head_dim)),
        dim(first) {}
  DP_INLINE typename S::F vector(int v) const {
    return S::mul(S::set1(scales[(dim + kLanes * v) / kQuantBlock]),
                  S::to_float(S::iload_s8(&words[kLanes * v].q)));
  }
  DP_INLINE void next() {
    words += stride;
    scales += blocks;
  }
};

inline const float* query(const SpanArgs& a, int pair) {
  return a.q + static_cast<size_t>(pair / a.group) * a.q_stride +
         static_cast<size_t>(pair % a.group) * static_cast<size_t>(a.kv.head_dim);
}

template <class S, class Word, int P, int N>
void score_tile(const SpanArgs& a, int pair, int block) {
  const int64_t base = a.span * kSpan;
  KeyLines<S, Word> k[N];
  for (int n = 0; n < N; ++n) k[n] = {a, base + kLanes * (block + n)};
  const float* q[P];
  for (int p = 0; p < P; ++p) q[p] = query(a, pair + p);
  typename S::F acc[P][N];
  unroll<P * N>([&](auto i) DP_INLINED { acc[i / N][i % N] = S::zero(); });
  for (int d = 0; d < a.kv.head_dim; ++d) {
    typename S::F line[N];
    unroll<N>([&](auto n) DP_INLINED { line[n] = k[n].line(d); });
    unroll<P>([&](auto p) DP_INLINED {
      const auto qd = S::set1(q[p][d]);
      unroll<N>([&](auto n) DP_INLINED { acc[p][n] = S::fma(qd, line[n], acc[p][n]); });
    });
  }
  const auto scale = S::set1(a.scale);
  unroll<P * N>([&](auto i) DP_INLINED {
    float* out = a.scores + static_cast<size_t>(pair + i / N) * kSpan + kLanes * (block + i % N);
    S::store(out, S::mul(acc[i / N][i % N], scale));
  });
}

template <class S, class Word, int P, int N>
void score_pairs(const SpanArgs& a, int pair, int blocks) {
  int b = 0;
  for (; b + N <= blocks; b += N) score_tile<S, Word, P, N>(a, pair, b);
  for (; b < blocks; ++b) score_tile<S, Word, P, 1>(a, pair, b);
}

template <class S, class Word>
void scores(const SpanArgs& a, int pairs, int blocks) {
  constexpr int kFree = S::kAccumulators;
  int p = 0;
  for (; p + 6 <= pairs; p += 6) score_pairs<S, Word, 6, (kFree >= 24 ? 4 : 1)>(a, p, blocks);
  for (; p + 3 <= pairs; p += 3) score_pairs<S, Word, 3, (kFree >= 24 ? 8 : 2)>(a, p, blocks);
  for (; p < pairs; ++p) score_pairs<S, Word, 1, (kFree >= 24 ? 8 : 4)>(a, p, blocks);
}

// exp(s - m) in place for the first n scores, zeros up to the next multiple of 16; m and l.
template <class S>
void softmax_span(float* s, int n, float* m_out, float* l_out) {
  for (int i = n; i % kLanes != 0; ++i) s[i] = -std::numeric_limits<float>::infinity();
  auto best = S::load(s);
  for (int i = kLanes; i < n; i += kLanes) best = S::max(S::load(s + i), best);
  const float m = S::fold_max(best);
  const auto shift = S::set1(m);
  auto lanes = S::zero();
  for (int i = 0; i < n; i += kLanes) {
    const auto e = exp<S>(S::sub(S::load(s + i), shift));
    S::store(s + i, e);
    lanes = S::add(lanes, e);
  }
  *m_out = m;
  *l_out = S::fold_add(lanes);
}

// o[P pairs][kVectors * 16 dims] += e * v over positions first .. last-1 of the span.
template <class S, class Word, int P, int kVectors>
void value_tile(const SpanArgs& a, int pair, int dim, int first, int last) {
  typename S::F acc[P][kVectors];
  float* o[P];
  const float* e[P];
  unroll<P>([&](auto p) DP_INLINED {
    o[p] = a.partial + static_cast<size_t>(pair + p) * a.partial_stride + kLanes + dim;
    e[p] = a.scores + static_cast<size_t>(pair + p) * kSpan;
    unroll<kVectors>([&](auto v) DP_INLINED { acc[p][v] = S::load(o[p] + kLanes * v); });
  });
  const int64_t base = a.span * kSpan;
  for (int i = first; i < last;) {
    ValueLines<S, Word> line(a, base + i, dim);
    const int stop = i / kPagePositions * kPagePositions + kPagePositions;
    for (const int end = stop < last ? stop : last; i < end; ++i, line.next()) {
      typename S::F wide[kVectors];
      unroll<kVectors>([&](auto v) DP_INLINED { wide[v] = line.vector(v); });
      unroll<P>([&](auto p) DP_INLINED {
        const auto ep = S::set1(e[p][i]);
        unroll<kVectors>([&](auto v) DP_INLINED { acc[p][v] = S::fma(ep, wide[v], acc[p][v]); });
      });
    }
  }
  unroll<P * kVectors>([&](auto i) DP_INLINED {
    S::store(o[i / kVectors] + kLanes * (i % kVectors), acc[i / kVectors][i % kVectors]);
  });
}

template <class S, class Word, int P>
void value_pairs(const SpanArgs& a, int pair, int first, int last) {
  int dim = 0;
  constexpr int kVectors =
      S::kAccumulators / P < 4 ? (S::kAccumulators / P < 1 ? 1 : S::kAccumulators / P) : 4;
  for (; dim + kLanes * kVectors <= a.kv.value_stride; dim += kLanes * kVectors)
    value_tile<S, Word, P, kVectors>(a, pair, dim, first, last);
  for (; dim < a.kv.value_stride; dim += kLanes)
    value_tile<S, Word, P, 1>(a, pair, dim, first, last);
}

template <class S, class Word>
void values(const SpanArgs& a, int pair, int last_pair, int first, int last) {
  if (first >= last) return;
  for (; pair + 6 <= last_pair; pair += 6) value_pairs<S, Word, 6>(a, pair, first, last);
  for (; pair + 3 <= last_pair; pair += 3) value_pairs<S, Word, 3>(a, pair, first, last);
  for (; pair < last_pair; ++pair) value_pairs<S, Word, 1>(a, pair, first, last);
}

template <class S, class Word>
void attend_span_as(const SpanArgs& a) {
  const int pairs = a.rows * a.group;
  // Positions of the span that row r sees: 0 or less if the span lies behind it.
  const auto seen = [&](int row) {
    const int64_t n = (a.seen > 0 ? a.seen : a.first_position + row + 1) - a.span * kSpan;
    return static_cast<int>(n < 0 ? 0 : n > kSpan ? kSpan : n);
  };
  const int most = seen(a.rows - 1), common = seen(0);
  if (most == 0) return;
  scores<S, Word>(a, pairs, (most + kLanes - 1) / kLanes);
  for (int pair = 0; pair < pairs; ++pair) {
    float* part = a.partial + static_cast<size_t>(pair) * a.partial_stride;
    const int n = seen(pair / a.group);
    if (n == 0) continue;
    softmax_span<S>(a.scores + static_cast<size_t>(pair) * kSpan, n, part, part + 1);
    for (int d = 0; d < a.kv.value_stride; d += kLanes) S::store(part + kLanes + d, S::zero());
  }
  values<S, Word>(a, 0, pairs, 0, common);
  for (int row = 0; row < a.rows; ++row)
    values<S, Word>(a, row * a.group, (row + 1) * a.group, common, seen(row));
}

template <class S>
void attend_span(const SpanArgs& a) {
  switch (a.kv.type) {
    case KvType::kF32:
      return attend_span_as<S, float>(a);
    case KvType::kF16:
      return attend_span_as<S, Half>(a);
    case KvType::kBF16:
      return attend_span_as<S, Bfloat>(a);
    case KvType::kQ8:
      return attend_span_as<S, Quant>(a);
  }
}

template <class S>
float exp_one(float x) {
  float out[kLanes];
  S::store(out, exp<S>(S::set1(x)));
  return out[0];
}

template <class S>
void combine_span(float* state, const float* part, int value_stride) {
  const bool grows = part[0] > state[0];
  const float w = grows ? exp_one<S>(state[0] - part[0]) : exp_one<S>(part[0] - state[0]);
  const auto weight = S::set1(w);
  float l[2 * kLanes] = {};
  if (grows) {
    S::store(l, S::fma(S::set1(state[1]), weight, S::set1(part[1])));
    for (int d = kLanes; d < kLanes + value_stride; d += kLanes)
      S::store(state + d, S::fma(S::load(state + d), weight, S::load(part + d)));
    state[0] = part[0];
  } else {
    S::store(l, S::fma(S::set1(part[1]), weight, S::set1(state[1])));
    for (int d = kLanes; d < kLanes + value_stride; d += kLanes)
      S::store(state + d, S::fma(S::load(part + d), weight, S::load(state + d)));
  }
  state[1] = l[0];
}

template <class S>
bool finish_attention(const float* state, int head_dim, float* out) {
  const float l = state[1];
  const auto sum = S::set1(l);
  for (int d = 0; d < head_dim; d += kLanes) {
    const int n = head_dim - d < kLanes ? head_dim - d : kLanes;
    S::store_n(out + d, S::div(S::load(state + kLanes + d), sum), n);
  }
  return l < std::numeric_limits<float>::infinity();  // false for NaN too
}

// Sixteen values narrowed to the KV type, rounded once to nearest even; float16 is clamped to
// +-65504.
template <class S>
DP_INLINE void narrow(float* out, typename S::F x) {
  S::store(out, x);
}
template <class S>
DP_INLINE void narrow(Half* out, typename S::F x) {
  const auto limit = S::set1(65504.0f);
  S::store_f16(&out->bits, S::max(S::neg(limit), S::min(limit, x)));
}
template <class S>
DP_INLINE void narrow(Bfloat* out, typename S::F x) {
  float values[kLanes];
  S::store(values, x);
  for (int i = 0; i < kLanes; ++i) out[i].bits = float_to_bfloat(values[i]);
}

template <class S, class Word>
void store_kv_as(const KvView& kv, const int32_t* block_table, int64_t position, const float* k,
                 const float* v) {
  const auto page = static_cast<size_t>(block_table[position / kPagePositions]);
  auto* head = reinterpret_cast<Word*>(kv.pages + page * kv.page_bytes + kv.head_offset);
  const int64_t in_page = position % kPagePositions;
  Word* keys = head + in_page / kLanes * kv.head_dim * kLanes + in_page % kLanes;
  Word* line =
      head + static_cast<int64_t>(kPagePositions) * kv.head_dim + in_page * kv.value_stride;
  for (int d = 0; d < kv.head_dim; d += kLanes) {
    const int n = kv.head_dim - d < kLanes ? kv.head_dim - d : kLanes;
    Word column[kLanes];
    narrow<S>(column, S::load_n(k + d, n));
    for (int i = 0; i < n; ++i) keys[(d + i) * kLanes] = column[i];
    narrow<S>(line + d, S::load_n(v + d, n));  // value_stride leaves room: the padding is zero
  }
}

// Each block of 32 dimensions (the last one filled up with zeros) by the rule of activations: scale
// d = amax / 127, q = x * (127 / amax) to nearest even. Where it is read, it is float32(d * q).
template <class S>
void store_quantized(const KvView& kv, const int32_t* block_table, int64_t position, const float* k,
                     const float* v) {
  const auto page = static_cast<size_t>(block_table[position / kPagePositions]);
  auto* head = reinterpret_cast<int8_t*>(kv.pages + page * kv.page_bytes + kv.head_offset);
  const int64_t in_page = position % kPagePositions;
  const int blocks = quant_blocks(kv.head_dim);
  int8_t* keys = head + in_page / kLanes * kv.head_dim * kLanes + in_page % kLanes;
  int8_t* line =
      head + static_cast<int64_t>(kPagePositions) * kv.head_dim + in_page * kv.value_stride;
  auto* scales = const_cast<float*>(quant_scales(kv, head));
  float* key_scales = scales + in_page / kLanes * blocks * kLanes + in_page % kLanes;
  float* value_scales = scales + (kPagePositions + in_page) * blocks;
  for (int b = 0; b < blocks; ++b) {
    const int d = b * kQuantBlock;
    const int n = kv.head_dim - d < kQuantBlock ? kv.head_dim - d : kQuantBlock;
    const int room = kv.value_stride - d < kQuantBlock ? kv.value_stride - d : kQuantBlock;
    float x[kQuantBlock] = {};
    ActBlock32 block;
    for (int i = 0; i < n; ++i) x[i] = k[d + i];
    quantize32<S>(x, kQuantBlock, &block);
    for (int i = 0; i < n; ++i) keys[(d + i) * kLanes] = block.q[i];
    key_scales[b * kLanes] = block.d;
    for (int i = 0; i < n; ++i) x[i] = v[d + i];
    quantize32<S>(x, kQuantBlock, &block);
    for (int i = 0; i < room; ++i) line[d + i] = block.q[i];
    value_scales[b] = block.d;
  }
}

template <class S>
bool all_finite(const float* x, int n) {
  const auto mask = S::iset1(0x7fffffff);
  auto best = S::izero();
  for (int i = 0; i < n; i += kLanes)
    best =
        S::imax(best, S::iand(S::as_int(S::load_n(x + i, n - i < kLanes ? n - i : kLanes)), mask));
  return S::ifold_max(best) < 0x7f800000;
}

template <class S>
bool store_kv(const KvView& kv, const int32_t* block_table, int64_t position, const float* k,
              const float* v) {
  switch (kv.type) {
    case KvType::kF32:
      store_kv_as<S, float>(kv, block_table, position, k, v);
      break;
    case KvType::kF16:
      store_kv_as<S, Half>(kv, block_table, position, k, v);
      break;
    case KvType::kBF16:
      store_kv_as<S, Bfloat>(kv, block_table, position, k, v);
      break;
    case KvType::kQ8:
      store_quantized<S>(kv, block_table, position, k, v);
      break;
  }
  return all_finite<S>(k, kv.head_dim) && all_finite<S>(v, kv.head_dim);
}

}  // namespace
}  // namespace draftproof
