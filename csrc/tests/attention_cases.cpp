// Attention: keys and values stored in pages, spans of many rows and heads, spans combined.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "cases.h"

namespace draftproof::test {
namespace {

const char* name_of(KvType type) {
  switch (type) {
    case KvType::kF32:
      return "f32";
    case KvType::kF16:
      return "f16";
    case KvType::kBF16:
      return "bf16";
    case KvType::kQ8:
      break;
  }
  return "q8_0";
}

// A sequence of one layer and KV head in pages that lie out of order. Memory that was never stored
// is all ones: a NaN in every type, as stale as it gets.
struct Sequence {
  KvType type;
  int head_dim, value_stride;
  std::vector<int32_t> block_table;
  std::vector<float> keys, values;  // [positions, head_dim]
  size_t page_bytes;

  Sequence(Random& random, KvType kv_type, int dim, int positions, float scale)
      : type(kv_type), head_dim(dim), value_stride((dim + kLanes - 1) / kLanes * kLanes) {
    const size_t element = type == KvType::kF32 ? 4 : type == KvType::kQ8 ? 1 : 2;
    page_bytes =
        kHeadOffset + kPagePositions * static_cast<size_t>(head_dim + value_stride) * element;
    if (type == KvType::kQ8)
      page_bytes += 2 * kPagePositions * sizeof(float) * static_cast<size_t>(quant_blocks(dim));
    const int pages = (positions + kPagePositions - 1) / kPagePositions;
    for (int p = 0; p < pages; ++p) block_table.push_back(pages - p);  // page 0 is never used
    const size_t n = static_cast<size_t>(positions) * static_cast<size_t>(head_dim);
    for (size_t i = 0; i < n; ++i) {
      keys.push_back(random.uniform(scale));
      values.push_back(random.uniform(2.0f));
    }
  }

  static constexpr size_t kHeadOffset = 64;
  size_t bytes() const { return page_bytes * (block_table.size() + 1); }
  KvView view(uint8_t* pages) const {
    return {pages, page_bytes, kHeadOffset, type, head_dim, value_stride};
  }
  bool store(const Kernels& kernels, uint8_t* pages, int position) const {
    const size_t at = static_cast<size_t>(position) * static_cast<size_t>(head_dim);
    return kernels.store_kv(view(pages), block_table.data(), position, keys.data() + at,
                            values.data() + at);
  }
};

void test_store(Report& report, KvType type, int head_dim) {
  const std::string kernel = std::string("store_kv/") + name_of(type);
  Random random(static_cast<uint64_t>(head_dim) + 9000);
  const int positions = 70;
  Sequence s(random, type, head_dim, positions, 1.0f);
  for (float& v : s.keys)  // everything that rounds in its own way
    if (random.coin())
      v = random.uniform(
          random.pick({0x1p-140f, 0x1p-24f, 0x1p-14f, 2049.0f, 65519.0f, 1e6f, 3e38f}));
  for (size_t i = 0; i < s.values.size(); i += 3)
    s.values[i] = (2048.5f + static_cast<float>(i)) * 0x1p-12f;
  Words want;
  for (const Kernels* row : tested_kernels()) {
    Bytes pages(s.bytes(), 0xff);
    bool good = true;
    for (int p = 0; p < positions; ++p) good = s.store(*row, pages.data(), p) && good;
    report.check(good, "%s: row %s refuses finite values", kernel.c_str(), row->name);
    Words got(pages.size() / 4);
    std::memcpy(got.data(), pages.data(), pages.size());
    if (want.empty()) want = got;
    report.compare(kernel, row->name, true, 1, got, want);
  }
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    Sequence broken = s;
    broken.values[static_cast<size_t>(head_dim) - 1] = bad;
    broken.keys[static_cast<size_t>(head_dim)] = bad;
    Bytes pages(s.bytes(), 0xff);
    for (const Kernels* row : tested_kernels())
      report.check(!broken.store(*row, pages.data(), 0) && !broken.store(*row, pages.data(), 1),
                   "%s: row %s takes %g", kernel.c_str(), row->name, bad);
  }
}

struct Shape {
  KvType type;
  int head_dim, group;
  int first;  // KV index of row 0
  int rows;
  float scale;  // of the keys
};

struct Span {
  const Sequence& s;
  const Shape& shape;
  Bytes& pages;
  const std::vector<float>& q;

  // m, l, o of `rows` rows from `first` on; what isn't written stays untouched. Neither scratch nor
  // result holds anything useful before.
  std::vector<float> run(const Kernels& kernels, int64_t span, int first, int rows) const {
    const auto pairs = static_cast<size_t>(rows * shape.group);
    std::vector<float> scores(pairs * kSpan, std::numeric_limits<float>::quiet_NaN());
    SpanArgs a{};
    a.kv = s.view(pages.data());
    a.block_table = s.block_table.data();
    a.q_stride = static_cast<size_t>(shape.group * shape.head_dim) + 7;
    a.q = q.data() + static_cast<size_t>(first) * a.q_stride;
    a.rows = rows;
    a.group = shape.group;
    a.first_position = shape.first + first;
    a.span = span;
    a.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    a.scores = scores.data();
    a.partial_stride = static_cast<size_t>(kLanes + s.value_stride);
    auto partial = untouched(pairs * a.partial_stride);
    a.partial = partial.data();
    kernels.attend_span(a);
    return partial;
  }
};

// A row's span in double, from keys and values as they were given: a check of meaning, for float32.
void check_meaning(Report& report, const Span& span, int64_t c, const std::vector<float>& out) {
  const Shape& shape = span.shape;
  const auto dim = static_cast<size_t>(shape.head_dim);
  const auto stride = static_cast<size_t>(kLanes + span.s.value_stride);
  double worst = 0.0;
  for (int pair = 0; pair < shape.rows * shape.group; ++pair) {
    const int row = pair / shape.group;
    const auto first = static_cast<int>(c * kSpan);
    const int last = std::min(first + kSpan, shape.first + row + 1);
    if (last <= first) continue;
    const float* q = span.q.data() +
                     static_cast<size_t>(row) * (static_cast<size_t>(shape.group) * dim + 7) +
                     static_cast<size_t>(pair % shape.group) * dim;
    std::vector<double> scores;
    for (int p = first; p < last; ++p) {
      const float* k = span.s.keys.data() + static_cast<size_t>(p) * dim;
      double dot = 0.0;
      for (size_t d = 0; d < dim; ++d) dot += double{q[d]} * k[d];
      scores.push_back(dot / std::sqrt(static_cast<double>(dim)));
    }
    const double m = *std::max_element(scores.begin(), scores.end());
    double l = 0.0;
    std::vector<double> o(dim);
    for (int p = first; p < last; ++p) {
      const float* v = span.s.values.data() + static_cast<size_t>(p) * dim;
      const double e = std::exp(scores[static_cast<size_t>(p - first)] - m);
      l += e;
      for (size_t d = 0; d < dim; ++d) o[d] += e * v[d];
    }
    const float* got = out.data() + static_cast<size_t>(pair) * stride;
    worst = std::max({worst, std::abs(got[0] - m) / (1.0 + std::abs(m)), std::abs(got[1] - l) / l});
    for (size_t d = 0; d < dim; ++d) worst = std::max(worst, std::abs(got[kLanes + d] - o[d]) / l);
  }
  report.check(worst < 1e-4, "attend_span: %g away from its definition", worst);
}

void test_span(Report& report, const Shape& shape, bool in_quick) {
  if (report.quick() && !in_quick) return;
  const std::string kernel = std::string("attend_span/") + name_of(shape.type);
  Random random(static_cast<uint64_t>(shape.first * 100 + shape.head_dim * 10 + shape.group) * 3 +
                static_cast<uint64_t>(shape.type));
  const Sequence s(random, shape.type, shape.head_dim, shape.first + shape.rows, shape.scale);
  Bytes pages(s.bytes(), 0xff);
  const auto q = activations(
      random,
      static_cast<size_t>(shape.rows) * static_cast<size_t>(shape.group * shape.head_dim + 7), 0);
  const Span span{s, shape, pages, q};
  for (int p = 0; p < shape.first + shape.rows; ++p) s.store(scalar_kernels(), pages.data(), p);
  const int last_span = (shape.first + shape.rows - 1) / kSpan;
  for (int c = last_span > 0 ? last_span - 1 : 0; c <= last_span; ++c) {
    std::vector<float> want;
    for (int r = 0; r < shape.rows; ++r) {
      const auto one = span.run(scalar_kernels(), c, r, 1);
      want.insert(want.end(), one.begin(), one.end());
    }
    if (shape.type == KvType::kF32) check_meaning(report, span, c, want);
    const size_t row_floats = want.size() / static_cast<size_t>(shape.rows);
    for (const int m : {1, 2, 3, 8, 4, 5, 6, 7, 9, 13, 16, 17, 33}) {
      const bool quick_m = m <= 3 || m == 8;
      if (m > shape.rows || (report.quick() && !quick_m)) continue;
      const int first = Random(static_cast<uint64_t>(m + c)).below(shape.rows - m + 1);
      const auto from =
          want.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(first) * row_floats);
      const auto to = from + static_cast<std::ptrdiff_t>(static_cast<size_t>(m) * row_floats);
      for (const Kernels* row : tested_kernels())
        report.compare(kernel, row->name, in_quick && quick_m, m,
                       words_of(span.run(*row, c, first, m)), words_of({from, to}));
    }
  }
}

void test_combine(Report& report) {
  for (const int stride : {16, 64, 80, 128}) {
    // How far the new maximum lies above the old: both branches, equality, weights of +0.
    for (const float above : {0.0f, 0.5f, -0.5f, 30.0f, -30.0f, 69.5f, -69.5f, 1e4f, -1e4f}) {
      Random random(static_cast<uint64_t>(stride) + 77);
      const auto n = static_cast<size_t>(kLanes + stride);
      auto state = activations(random, n, 0), part = activations(random, n, 0);
      part[0] = state[0] + above;
      state[1] = 2.5f;
      part[1] = 511.0f;
      Words want;
      for (const Kernels* row : tested_kernels()) {
        auto out = state;
        row->combine_span(out.data(), part.data(), stride);
        if (want.empty()) want = words_of(out);
        report.compare("combine_span", row->name, true, 1, words_of(out), want);
      }
    }
  }
}

}  // namespace

void test_attention(Report& report) {
  for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kBF16, KvType::kQ8}) {
    for (const int head_dim : {16, 64, 72, 80, 128}) test_store(report, type, head_dim);
    test_span(report, {type, 16, 1, 0, 3, 1.0f}, true);      // from the first position on
    test_span(report, {type, 64, 6, 12, 9, 1.0f}, true);     // across a block of sixteen
    test_span(report, {type, 40, 2, 507, 9, 1.0f}, true);    // rows on both sides of a span's end
    test_span(report, {type, 128, 7, 60, 17, 1.0f}, false);  // across a page
    test_span(report, {type, 72, 1, 1000, 33, 1.0f}, false);
    test_span(report, {type, 64, 3, 500, 33, 100.0f}, false);  // most weights are +0
    test_span(report, {type, 80, 12, 1530, 13, 1.0f}, false);
  }
  test_combine(report);
}

}  // namespace draftproof::test
