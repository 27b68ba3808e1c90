// Owns: the selection behind sample_row (definition: sampler.h).

#include "sampler.h"

#include <algorithm>

#include "philox.h"
#include "simd/exp_spec.h"

namespace draftproof {
namespace {

constexpr int32_t kDrawBlock = 1024;  // ids per block of draw_from_row; part of the definition
constexpr int32_t kFirstPrefix = 64;  // top_p or min_p without top_k: first guess of the prefix
constexpr int32_t kPrefixGrowth = 8;

static_assert(kDrawBlock % 16 == 0);

// weights[id] = exp(logits[id] / temperature - zmax) for the whole row.
void weigh_row(const float* logits, int32_t n, float temperature, float zmax,
               const Kernels& kernels, SamplerScratch& scratch) {
  scratch.weights.resize(n);
  kernels.exp_row(logits, n, temperature, zmax, scratch.weights.data());
}

// ---- The sorted prefix ----

void weigh_prefix(float zmax, SamplerScratch& scratch) {
  const size_t n = scratch.candidates.size();
  scratch.weights.resize(n);
  for (size_t i = 0; i < n; ++i) scratch.weights[i] = exp_f32(scratch.candidates[i].z - zmax);
}

// Length that top_p (its mass: top_p * normaliser) and min_p leave of a sorted prefix. *decided is
// false if the walk came to the end of the prefix without a reason to stop. One walk serves both
// steps because each keeps a prefix: the shorter one is what is left after both.
size_t cut_prefix(const std::vector<float>& weights, float mass, float min_p, bool* decided) {
  float running = 0.0f;
  *decided = true;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (i > 0 && (weights[i] < min_p || weights[i] == 0.0f)) return i;
    running = running + weights[i];
    if (running >= mass) return i + 1;
  }
  *decided = false;
  return weights.size();
}

// Leaves the candidates kept by top_k, top_p and min_p in scratch.candidates, with their weights.
void truncate_row(const float* logits, int32_t n, const SamplingParams& params, bool top_k_on,
                  float zmax, const Kernels& kernels, SamplerScratch& scratch) {
  const bool top_p_on = params.top_p < 1.0f;
  float mass = kInfinity;
  bool decided = false;
  size_t keep = 0;
  if (top_k_on) {
    collect_prefix(logits, n, params.temperature, params.top_k, scratch);
    weigh_prefix(zmax, scratch);
    if (top_p_on) {
      float normaliser = 0.0f;
      for (const float w : scratch.weights) normaliser = normaliser + w;
      mass = params.top_p * normaliser;
    }
    keep = cut_prefix(scratch.weights, mass, params.min_p, &decided);
  } else {
    if (top_p_on) {
      weigh_row(logits, n, params.temperature, zmax, kernels, scratch);
      mass = params.top_p * sum_lanes(scratch.weights.data(), n);
    }
    // A prefix of the order is the same however long it was collected: grow it until it is enough.
    int32_t count = std::min(kFirstPrefix, n);
    while (true) {
      collect_prefix(logits, n, params.temperature, count, scratch);
      weigh_prefix(zmax, scratch);
      keep = cut_prefix(scratch.weights, mass, params.min_p, &decided);
      if (decided || count == n) break;
      count = count > n / kPrefixGrowth ? n : count * kPrefixGrowth;
    }
  }
  scratch.candidates.resize(keep);
  scratch.weights.resize(keep);
}

// ---- The draw ----

int32_t draw_from_prefix(const SamplerScratch& scratch, float u) {
  float total = 0.0f;
  for (const float w : scratch.weights) total = total + w;
  const float target = u * total;
  float running = 0.0f;
  for (size_t i = 0; i < scratch.weights.size(); ++i) {
    running = running + scratch.weights[i];
    if (running > target) return scratch.candidates[i].id;
  }
  return scratch.candidates.back().id;  // not reached: u <= 1 - 2^-24, so target < total
}

int32_t draw_from_row(const float* weights, int32_t n, float u, std::vector<float>& block_sums) {
  block_sums.clear();
  float total = 0.0f;
  for (int32_t base = 0; base < n; base += kDrawBlock) {
    block_sums.push_back(sum_lanes(weights + base, std::min(kDrawBlock, n - base)));
    total = total + block_sums.back();
  }
  const float target = u * total;
  float running = 0.0f;
  int32_t base = 0;
  for (const float sum : block_sums) {
    if (running + sum > target) break;  // always in the end: target < total
    running = running + sum;
    base += kDrawBlock;
  }
  int32_t last = -1;
  for (int32_t id = base; id < std::min(base + kDrawBlock, n); ++id) {
    running = running + weights[id];
    if (running > target) return id;
    if (weights[id] > 0.0f) last = id;
  }
  return last;
}

}  // namespace

int32_t sample_row(const float* logits, int32_t vocab_size, const SamplingParams& params,
                   const Kernels& kernels, SamplerScratch& scratch) {
  const bool greedy = !(params.temperature > 0.0f);
  if (greedy && params.edits == nullptr) return argmax_row(logits, vocab_size);

  if (vocab_size < 1 || !scan_row(logits, vocab_size, scratch.block_max)) return -1;
  if (params.edits != nullptr) {
    if (!edit_row(logits, vocab_size, *params.edits, scratch)) return -1;
    logits = scratch.edited.data();
  }
  if (greedy) return first_largest(logits, vocab_size, scratch.block_max);

  float zmax = -kInfinity;
  for (float& m : scratch.block_max) {
    m = m / params.temperature;
    zmax = m > zmax ? m : zmax;
  }
  if (not_finite(zmax)) {
    scan_row(logits, vocab_size, scratch.block_max);
    return first_largest(logits, vocab_size, scratch.block_max);
  }

  const float u = sampling_uniform(params.seed, params.output_index, params.choice_index);
  const bool top_k_on = params.top_k > 0 && params.top_k < vocab_size;
  if (top_k_on || params.top_p < 1.0f || params.min_p > 0.0f) {
    truncate_row(logits, vocab_size, params, top_k_on, zmax, kernels, scratch);
    return draw_from_prefix(scratch, u);
  }
  weigh_row(logits, vocab_size, params.temperature, zmax, kernels, scratch);
  return draw_from_row(scratch.weights.data(), vocab_size, u, scratch.block_sums);
}

}  // namespace draftproof
