// Kernels that work on one row: quantize, rms_norm, layer_norm, gelu, rope, swiglu, softmax, mix,
// exp_row, store_kv, finish_attention; and the RoPE table.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "cases.h"
#include "rope_table.h"
#include "simd/exp_spec.h"

namespace draftproof::test {
namespace {

// run(kernels) gives the words that a call leaves behind, whatever they are.
template <class Run>
Words compare_rows(Report& report, const std::string& kernel, bool in_quick, int m, Run run) {
  if (report.quick() && !in_quick) return {};
  const Words want = run(scalar_kernels());
  for (const Kernels* row : tested_kernels())
    report.compare(kernel, row->name, in_quick, m, run(*row), want);
  return want;
}

template <class Block>
Words quantized(bool (*quantize)(const float*, int64_t, Block*), const std::vector<float>& x,
                int unit) {
  const size_t blocks = x.size() / static_cast<size_t>(unit);
  Bytes out(blocks * sizeof(Block), 0xee);
  const bool good =
      quantize(x.data(), static_cast<int64_t>(x.size()), reinterpret_cast<Block*>(out.data()));
  static_assert(sizeof(Block) % sizeof(uint32_t) == 0);
  Words words(out.size() / sizeof(uint32_t));
  std::memcpy(words.data(), out.data(), out.size());
  words.push_back(good ? 1 : 0);
  return words;
}

// The sums that Q2_K and Q3_K read, beside what the digest of "quantize256" is of.
using Sums = std::vector<int32_t>;
Sums sums_of(const Words& words) {
  Sums out;
  const auto* blocks = reinterpret_cast<const ActBlock256*>(words.data());
  for (size_t b = 0; b < (words.size() - 1) * sizeof(uint32_t) / sizeof(ActBlock256); ++b) {
    out.push_back(blocks[b].sum);
    out.insert(out.end(), blocks[b].sum16, blocks[b].sum16 + 16);
  }
  return out;
}
Words without_sums(const Words& words) {
  Words out;
  const auto* blocks = reinterpret_cast<const ActBlock256*>(words.data());
  for (size_t b = 0; b < (words.size() - 1) * sizeof(uint32_t) / sizeof(ActBlock256); ++b) {
    const size_t at = out.size();
    out.resize(at + 85);
    std::memcpy(&out[at], &blocks[b].d, 4);
    std::memcpy(&out[at + 1], blocks[b].sum16_m32, 64);
    std::memcpy(&out[at + 17], blocks[b].sum32, 16);
    std::memcpy(&out[at + 21], blocks[b].q, 256);
  }
  out.push_back(words.back());
  return out;
}
// By another route: in ascending order, then put in the kernel's.
Sums sums_of_quants(const Words& words) {
  Sums out;
  const auto* blocks = reinterpret_cast<const ActBlock256*>(words.data());
  for (size_t b = 0; b < (words.size() - 1) * sizeof(uint32_t) / sizeof(ActBlock256); ++b) {
    int32_t sums[16] = {}, all = 0;
    for (int i = 0; i < 256; ++i) sums[i / 16] += blocks[b].q[i];
    for (const int32_t sum : sums) all += sum;
    out.push_back(all);
    for (int four = 0; four < 16; four += 4)
      for (const int i : {0, 2, 1, 3}) out.push_back(sums[four + i]);
  }
  return out;
}

// What a quantized block must be whatever the code: the integers of the definition, by another
// route.
template <class Block>
void check_quantized(Report& report, const char* kernel, const Words& words,
                     const std::vector<float>& x, int unit) {
  bool good = true;
  const auto* blocks = reinterpret_cast<const Block*>(words.data());
  for (size_t b = 0; b < x.size() / static_cast<size_t>(unit); ++b) {
    float amax = 0.0f;
    for (int i = 0; i < unit; ++i)
      amax = std::max(amax, std::abs(x[b * static_cast<size_t>(unit) + static_cast<size_t>(i)]));
    const bool zero = amax < 0x1p-60f;
    const float inverse = zero ? 0.0f : 127.0f / amax;
    good = good && blocks[b].d == (zero ? 0.0f : amax / 127.0f);
    for (int i = 0; i < unit; ++i) {
      const float product = x[b * static_cast<size_t>(unit) + static_cast<size_t>(i)] * inverse;
      good = good && blocks[b].q[i] == static_cast<int>(std::nearbyint(product)) &&
             blocks[b].q[i] >= -127;
    }
  }
  report.check(good, "%s: not the definition's integers", kernel);
}

void test_quantize(Report& report) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (int kind = 0; kind < 24; ++kind) {
    Random random(static_cast<uint64_t>(kind) + 400);
    auto x = activations(random, 256 * (1 + static_cast<size_t>(kind) % 3), kind);
    if (kind >= 8 && kind < 16) {  // halfway cases: amax 127 makes the product the value itself
      for (float& v : x)
        v = static_cast<float>(random.below(254) - 127) + (random.coin() ? 0.5f : 0.0f);
      for (size_t i = 0; i < x.size(); i += 32) x[i] = random.coin() ? 127.0f : -127.0f;
    }
    if (kind == 16) x[17] = nan;
    if (kind == 17) x[255] = -inf;
    if (kind == 18) x[3] = std::numeric_limits<float>::max();
    if (kind == 19)
      for (float& v : x) v *= 0x1p-61f;  // around the smallest block that isn't zero
    const auto a = compare_rows(report, "quantize32", true, 1,
                                [&](const Kernels& k) { return quantized(k.quantize32, x, 32); });
    const auto b = quantized(scalar_kernels().quantize256, x, 256);
    compare_rows(report, "quantize256", true, 1,
                 [&](const Kernels& k) { return without_sums(quantized(k.quantize256, x, 256)); });
    for (const Kernels* row : tested_kernels())
      report.check(sums_of(quantized(row->quantize256, x, 256)) == sums_of_quants(b),
                   "quantize256: row %s, kind %d: sums", row->name, kind);
    const bool finite = kind != 16 && kind != 17;
    report.check((a.back() == 1) == finite, "quantize32: finiteness of kind %d", kind);
    report.check((b.back() == 1) == finite, "quantize256: finiteness of kind %d", kind);
    if (!finite) continue;
    check_quantized<ActBlock32>(report, "quantize32", a, x, 32);
    check_quantized<ActBlock256>(report, "quantize256", b, x, 256);
  }
}

// The greatest distance between got and want, relative to the greatest want: a check of meaning
// against libm in double, not of bits.
double distance(const Words& got, const std::vector<double>& want) {
  double worst = 0.0, size = 1e-30;
  for (size_t i = 0; i < want.size(); ++i) {
    size = std::max(size, std::abs(want[i]));
    worst = std::max(worst, std::abs(want[i] - double{std::bit_cast<float>(got[i])}));
  }
  return worst / size;
}

void test_rms_norm(Report& report) {
  for (const int n : {1, 2, 15, 16, 17, 31, 33, 64, 72, 128, 576, 1536}) {
    for (const int groups : {1, 3}) {
      for (int kind = 0; kind < 8; ++kind) {
        Random random(static_cast<uint64_t>(n * 100 + groups * 10 + kind));
        const size_t size = static_cast<size_t>(n) * static_cast<size_t>(groups);
        const auto x = activations(random, size, kind),
                   w = activations(random, static_cast<size_t>(n), 0);
        const Words got = compare_rows(report, "rms_norm", n < 100, groups, [&](const Kernels& k) {
          auto out = untouched(size + 5);
          k.rms_norm(x.data(), w.data(), n, groups, 1e-6f, out.data());
          return words_of(out);
        });
        if (got.empty()) continue;
        std::vector<double> want;
        for (size_t g = 0; g < size; g += static_cast<size_t>(n)) {
          double sum = 0.0;
          for (size_t i = 0; i < static_cast<size_t>(n); ++i) sum += double{x[g + i]} * x[g + i];
          for (size_t i = 0; i < static_cast<size_t>(n); ++i)
            want.push_back(double{x[g + i]} / std::sqrt(sum / n + double{1e-6f}) * w[i]);
        }
        report.check(distance(got, want) < 1e-6, "rms_norm: n %d: %g away from its definition", n,
                     distance(got, want));
      }
    }
  }
}

void test_layer_norm(Report& report) {
  for (const int n : {1, 2, 15, 16, 17, 31, 72, 1152, 4608}) {
    for (int kind = 0; kind < 8; ++kind) {
      Random random(static_cast<uint64_t>(n * 100 + kind));
      const auto size = static_cast<size_t>(n);
      const auto x = activations(random, size, kind), w = activations(random, size, 0),
                 b = activations(random, size, 0);
      const Words got = compare_rows(report, "layer_norm", n < 100, 1, [&](const Kernels& k) {
        auto out = untouched(size + 5);
        k.layer_norm(x.data(), w.data(), b.data(), n, 1e-6f, out.data());
        return words_of(out);
      });
      if (got.empty()) continue;
      double mean = 0.0, sum = 0.0;
      for (const float v : x) mean += v;
      mean /= n;
      for (const float v : x) sum += (v - mean) * (v - mean);
      std::vector<double> want;
      for (size_t i = 0; i < size; ++i)
        want.push_back((x[i] - mean) / std::sqrt(sum / n + double{1e-6f}) * w[i] + b[i]);
      report.check(distance(got, want) < 1e-5, "layer_norm: n %d: %g away from its definition", n,
                   distance(got, want));
    }
  }
}

void test_gelu(Report& report) {
  for (const int n : {1, 15, 16, 17, 100, 4096}) {
    for (int kind = 0; kind < 9; ++kind) {
      Random random(static_cast<uint64_t>(n * 10 + kind));
      const auto size = static_cast<size_t>(n);
      auto x = activations(random, size, kind);
      if (kind == 8)
        for (float& v : x) v = random.pick({-1.0f, 1.0f}) * random.uniform(12.0f);
      for (const bool exact : {false, true}) {
        const char* kernel = exact ? "gelu_erf" : "gelu_tanh";
        const Words got = compare_rows(report, kernel, n < 1000, 1, [&](const Kernels& k) {
          auto out = untouched(size + 5);
          (exact ? k.gelu_erf : k.gelu_tanh)(x.data(), n, out.data());
          return words_of(out);
        });
        if (got.empty()) continue;
        std::vector<double> want;
        for (const float value : x) {
          const double v = value;
          const double u = 0.7978845608028654 * (v + 0.044715 * v * v * v);
          want.push_back(exact ? v * 0.5 * std::erfc(-v * 0.7071067811865476)
                               : 0.5 * v * (1.0 + std::tanh(u)));
        }
        report.check(distance(got, want) < 1e-6, "%s: n %d: %g away from its definition", kernel, n,
                     distance(got, want));
      }
    }
  }
}

void test_rope(Report& report) {
  for (const int head_dim : {2, 16, 30, 32, 64, 72, 80, 128, 256}) {
    for (const int heads : {1, 2, 7}) {
      Random random(static_cast<uint64_t>(head_dim * 10 + heads));
      const size_t size = static_cast<size_t>(head_dim) * static_cast<size_t>(heads);
      auto x = activations(random, size + 5, heads);
      const auto c = activations(random, static_cast<size_t>(head_dim) / 2, 0);
      const auto s = activations(random, static_cast<size_t>(head_dim) / 2, 0);
      const Words got = compare_rows(report, "rope", head_dim < 100, heads, [&](const Kernels& k) {
        auto out = x;
        k.rope(out.data(), heads, head_dim, c.data(), s.data());
        return words_of(out);
      });
      if (got.empty()) continue;
      std::vector<double> want(x.begin(), x.end());  // the five values behind the heads stay
      const auto half = static_cast<size_t>(head_dim) / 2;
      for (size_t h = 0; h < size; h += 2 * half) {
        for (size_t j = 0; j < half; ++j) {
          const double a = x[h + j], b = x[h + half + j];
          want[h + j] = a * c[j] - b * s[j];
          want[h + half + j] = b * c[j] + a * s[j];
        }
      }
      report.check(distance(got, want) < 1e-6, "rope: head_dim %d: %g away from its definition",
                   head_dim, distance(got, want));
    }
  }
}

void test_swiglu(Report& report) {
  for (const int n : {1, 15, 16, 17, 47, 100, 1536, 4864}) {
    for (int kind = 0; kind < 9; ++kind) {
      Random random(static_cast<uint64_t>(n * 10 + kind));
      const auto size = static_cast<size_t>(n);
      auto g = activations(random, size, kind);
      const auto u = activations(random, size, 0);
      if (kind == 8)  // both clamps of exp, and where n changes
        for (float& v : g)
          v = random.pick({-1.0f, 1.0f}) *
              (random.coin() ? 60.0f + random.uniform(40.0f)
                             : 0.34657359f * static_cast<float>(random.below(9)));
      const Words got = compare_rows(report, "swiglu", n < 1000, 1, [&](const Kernels& k) {
        auto out = untouched(size + 5);
        k.swiglu(g.data(), u.data(), n, out.data());
        return words_of(out);
      });
      if (got.empty()) continue;
      std::vector<double> want;
      for (size_t i = 0; i < size; ++i)
        want.push_back(g[i] / (1.0 + std::exp(-double{g[i]})) * u[i]);
      report.check(distance(got, want) < 1e-6, "swiglu: n %d: %g away from its definition", n,
                   distance(got, want));
    }
  }
}

void test_softmax(Report& report) {
  for (const int n : {1, 7, 16, 17, 64, 128, 1000}) {
    for (int kind = 0; kind < 9; ++kind) {
      Random random(static_cast<uint64_t>(n * 12 + kind));
      const auto size = static_cast<size_t>(n);
      auto x = activations(random, size, kind);
      if (kind == 8) x[size / 2] = std::numeric_limits<float>::quiet_NaN();
      const Words got = compare_rows(report, "softmax", n < 1000, 1, [&](const Kernels& k) {
        auto out = untouched(size + 5);
        const bool finite = k.softmax(x.data(), n, out.data());
        if (!finite) std::fill(out.begin(), out.end(), 0.0f);
        auto words = words_of(out);
        words.push_back(finite ? 1 : 0);
        return words;
      });
      if (got.empty()) continue;
      report.check((got.back() == 1) == (kind != 8), "softmax: finiteness of kind %d", kind);
      if (kind == 8) continue;
      std::vector<double> want;
      double sum = 0.0;
      const double top = *std::max_element(x.begin(), x.end());
      for (const float v : x) want.push_back(std::exp(v - top)), sum += want.back();
      for (double& v : want) v /= sum;
      report.check(distance(got, want) < 1e-6, "softmax: n %d: %g away from its definition", n,
                   distance(got, want));
    }
  }
}

void test_mix(Report& report) {
  for (const int n : {1, 15, 16, 33, 100, 2048}) {
    for (const int count : {1, 2, 3, 8}) {
      Random random(static_cast<uint64_t>(n * 100 + count));
      const auto size = static_cast<size_t>(n);
      std::vector<std::vector<float>> parts;
      std::vector<const float*> rows;
      std::vector<float> p;
      for (int i = 0; i < count; ++i) parts.push_back(activations(random, size, i));
      for (const auto& part : parts) rows.push_back(part.data()), p.push_back(random.uniform(1.0f));
      const auto added = activations(random, size, 0);
      const float* residual = count % 2 == 0 ? added.data() : nullptr;
      const Words got = compare_rows(report, "mix", n < 2000, count, [&](const Kernels& k) {
        auto out = untouched(size + 5);
        k.mix(p.data(), rows.data(), count, residual, n, out.data());
        return words_of(out);
      });
      if (got.empty()) continue;
      std::vector<double> want;
      for (size_t j = 0; j < size; ++j) {
        want.push_back(residual != nullptr ? double{residual[j]} : 0.0);
        for (size_t i = 0; i < parts.size(); ++i) want.back() += double{p[i]} * parts[i][j];
      }
      report.check(distance(got, want) < 1e-6, "mix: n %d, count %d", n, count);
    }
  }
}

void test_exp_row(Report& report) {
  for (const int n : {1, 15, 16, 17, 47, 1000, 4864}) {
    for (int kind = 0; kind < 9; ++kind) {
      Random random(static_cast<uint64_t>(n * 11 + kind));
      const auto size = static_cast<size_t>(n);
      auto x = activations(random, size, kind);
      if (kind == 8)  // as the sampler's: far below the shift, masked, and where exp's n changes
        for (float& v : x)
          v = random.below(9) == 0 ? -std::numeric_limits<float>::infinity()
                                   : -0.34657359f * static_cast<float>(random.below(230));
      const float divisor = random.pick({1.0f, 0.7f, 1e-6f, 100.0f}), shift = random.uniform(4.0f);
      const Words got = compare_rows(report, "exp_row", n < 1000, 1, [&](const Kernels& k) {
        auto out = untouched(size + 5);
        k.exp_row(x.data(), n, divisor, shift, out.data());
        return words_of(out);
      });
      if (got.empty()) continue;
      auto want = untouched(size + 5);
      for (size_t i = 0; i < size; ++i) want[i] = exp_f32(x[i] / divisor - shift);
      report.check(got == words_of(want), "exp_row: n %d: not exp_f32's bits", n);
    }
  }
}

void test_finish(Report& report) {
  for (const int head_dim : {1, 16, 30, 64, 72, 80, 128}) {
    Random random(static_cast<uint64_t>(head_dim));
    const auto padded = static_cast<size_t>((head_dim + kLanes - 1) / kLanes * kLanes);
    auto state = activations(random, kLanes + padded, 0);
    for (const float l : {1.0f, 3.0f, 511.9f, 1e-30f}) {
      state[1] = l;
      const Words words = compare_rows(report, "finish_attention", true, 1, [&](const Kernels& k) {
        auto out = untouched(static_cast<size_t>(head_dim) + 3);
        const bool good = k.finish_attention(state.data(), head_dim, out.data());
        Words result = words_of(out);
        result.push_back(good ? 1 : 0);
        return result;
      });
      report.check(words.back() == 1, "finish_attention: l %g counts as not finite", l);
    }
    std::vector<float> out(static_cast<size_t>(head_dim));
    for (const float l :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      state[1] = l;
      for (const Kernels* row : tested_kernels())
        report.check(!row->finish_attention(state.data(), head_dim, out.data()),
                     "finish_attention: row %s takes l %g", row->name, l);
    }
  }
}

}  // namespace

void test_rows(Report& report) {
  test_quantize(report);
  test_rms_norm(report);
  test_layer_norm(report);
  test_gelu(report);
  test_rope(report);
  test_swiglu(report);
  test_softmax(report);
  test_mix(report);
  test_exp_row(report);
  test_finish(report);
}

void test_rope_table(Report& report) {
  // round(2^64 * theta^(-2j/128) / 2 pi) for j = 0, 1, 7, 20, 31, 45, 63, from 60 decimal digits.
  struct Table {
    const char* kernel;
    uint64_t turns[7];
  };
  constexpr Table kTables[] = {
      {"rope_table/1e4",
       {0x28be60db9391054a, 0x234855e55644662f, 0xee0e780ee2a8099, 0x24a8b144acc0654,
        0x7872b8a7ec4e20, 0x100fe04cd6d8fa, 0x13458e2f59024}},
      {"rope_table/1e6",
       {0x28be60db9391054a, 0x20d53d2925f67455, 0x8fdb50634ad64e9, 0x8b176173e0158c,
        0xcf185f65ff0fe, 0xa15b9a548735, 0x350430ff7cb}},
      {"rope_table/5e6",
       {0x28be60db9391054a, 0x200481071f2c4713, 0x78a30d17fc893ba, 0x541d5d6e4c2c2c,
        0x5ef970b579943, 0x3409eaa27afa, 0xadf90a835b}}};
  for (const Table& table : kTables) {
    double worst = 0.0;
    for (const uint64_t turns : table.turns) {
      std::vector<float> out;
      for (int64_t position = 0; position < 262144; position += position < 600      ? 1
                                                                : position < 262000 ? 509
                                                                                    : 1) {
        float c, s;
        rope_cos_sin(turns, position, &c, &s);
        out.push_back(c);
        out.push_back(s);
        // libm's only part: that the definition means cos and sin.
        const auto phase = static_cast<int64_t>(turns * static_cast<uint64_t>(position));
        const double angle = static_cast<double>(phase) * 0x1p-63 * 3.14159265358979323846;
        worst = std::max({worst, std::abs(std::cos(angle) - c), std::abs(std::sin(angle) - s)});
      }
      report.compare(table.kernel, "any", true, 1, words_of(out), words_of(out));
    }
    report.check(worst < 3.1e-8, "%s: %g away from cos and sin", table.kernel, worst);
  }
}

}  // namespace draftproof::test
