// What the sampler's test programs share: random rows, and the choice of a
// token once more from its definition.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>
#include <vector>

#include "../dispatch.h"
#include "../philox.h"
#include "../sampler.h"
#include "../simd/exp_spec.h"
#include "check.h"

namespace draftproof {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Random words without <random>, whose distributions differ between libraries.
class Words {
 public:
  explicit Words(uint32_t stream) : stream_(stream) {}
  uint32_t next() {
    if (used_ == 4) {
      block_ = philox_4x32_10({counter_++, stream_, 0, 0}, {0x5eed, 1});
      used_ = 0;
    }
    return block_[used_++];
  }
  uint32_t below(uint32_t n) { return next() % n; }
  float unit() { return static_cast<float>(next() >> 8) * 0x1p-24f; }
  float finite() {
    while (true) {
      const float x = std::bit_cast<float>(next());
      if (std::isfinite(x)) return x;
    }
  }
  // A float whose exponent lies within `spread` of 2^centre.
  float near(int centre, int spread) {
    const int e = centre - spread + static_cast<int>(below(2 * spread + 1));
    return std::ldexp((below(2) != 0 ? 1.0f : -1.0f) * (1.0f + unit()), e);
  }

 private:
  uint32_t stream_, counter_ = 0, used_ = 4;
  PhiloxCounter block_{};
};

bool same_value(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (a != a && b != b);
}

// On the best row of the dispatch table.
int32_t sample_row(const float* logits, int32_t n, const SamplingParams& params,
                   SamplerScratch& scratch) {
  return draftproof::sample_row(logits, n, params, *available_kernels().back(), scratch);
}

// The definition in sampler.h without any of the shortcuts: everything is sorted.
int32_t sample_by_definition(const std::vector<float>& logits, const SamplingParams& p) {
  const auto n = static_cast<int32_t>(logits.size());
  std::vector<float> z(n), w(n);
  for (int32_t i = 0; i < n; ++i) z[i] = p.temperature > 0 ? logits[i] / p.temperature : logits[i];
  float zmax = *std::max_element(z.begin(), z.end());
  if (*std::max_element(logits.begin(), logits.end()) == -kInf) return -1;
  const bool greedy = p.temperature == 0 || !std::isfinite(zmax);
  if (greedy) z = logits;
  std::vector<int32_t> ids(n);
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return z[a] > z[b]; });
  if (greedy) return ids[0];
  for (int32_t i = 0; i < n; ++i) w[i] = exp_f32(z[i] - zmax);
  const auto lane_sum = [&](int32_t begin, int32_t end) {
    float lane[16] = {};
    for (int32_t i = begin; i < end; ++i) lane[i % 16] += w[i];
    for (const int step : {8, 4, 2, 1})
      for (int i = 0; i < step; ++i) lane[i] += lane[i + step];
    return lane[0];
  };
  const float u = sampling_uniform(p.seed, p.output_index, p.choice_index);
  const bool top_k_on = p.top_k > 0 && p.top_k < n;
  if (!top_k_on && p.top_p >= 1.0f && p.min_p <= 0.0f) {
    std::vector<float> after;
    for (int32_t b = 0; b < n; b += 1024) {
      after.push_back((after.empty() ? 0.0f : after.back()) + lane_sum(b, std::min(n, b + 1024)));
    }
    const float target = u * after.back();
    size_t block = 0;
    while (!(after[block] > target)) ++block;
    float running = block == 0 ? 0.0f : after[block - 1];
    int32_t last = -1;
    for (auto i = static_cast<int32_t>(block * 1024); i < std::min<int32_t>(n, block * 1024 + 1024);
         ++i) {
      running += w[i];
      if (running > target) return i;
      if (w[i] > 0) last = i;
    }
    return last;
  }
  if (top_k_on) ids.resize(p.top_k);
  if (p.top_p < 1.0f) {
    float normaliser = 0.0f;
    if (top_k_on) {
      for (const int32_t id : ids) normaliser += w[id];
    } else {
      normaliser = lane_sum(0, n);
    }
    float running = 0.0f;
    for (size_t i = 0; i < ids.size(); ++i) {
      running += w[ids[i]];
      if (running >= p.top_p * normaliser) {
        ids.resize(i + 1);
        break;
      }
    }
  }
  for (size_t i = 1; i < ids.size(); ++i) {
    if (w[ids[i]] < p.min_p || w[ids[i]] == 0.0f) {
      ids.resize(i);
      break;
    }
  }
  float total = 0.0f, running = 0.0f;
  for (const int32_t id : ids) total += w[id];
  for (const int32_t id : ids) {
    running += w[id];
    if (running > u * total) return id;
  }
  return ids.back();
}

// Rows of several characters: smooth, coarse (many ties, both zeros), peaked, flat, huge.
std::vector<float> make_row(Words& words, int32_t n, uint32_t kind) {
  std::vector<float> row(n);
  for (float& x : row) {
    const float s = words.unit() + words.unit() + words.unit() + words.unit() - 2.0f;
    switch (kind) {
      case 0:
        x = 6.0f * s;
        break;
      case 1:
        x = static_cast<float>(static_cast<int>(4.0f * s)) * (words.below(2) ? 1.0f : -1.0f);
        break;
      case 2:
        x = words.below(50) == 0 ? 20.0f + s : 40.0f * s;
        break;
      case 3:
        x = 1.5f;
        break;
      default:
        x = 1e38f * s;
        break;
    }
  }
  return row;
}

}  // namespace
}  // namespace draftproof
