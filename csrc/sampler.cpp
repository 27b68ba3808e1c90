// Owns: the selection behind sample_row (definition: sampler.h). Passes over the whole row are
// small functions of their own, so that a vectorised kernel can take their place one by one.

#include "sampler.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>

#include "philox.h"
#include "simd/exp_spec.h"

namespace draftproof {
namespace {

constexpr int32_t kLanes = 16;
constexpr int32_t kMaxBlock = 64;     // ids per block of scan_row; only speed depends on it
constexpr int32_t kDrawBlock = 1024;  // ids per block of draw_from_row; part of the definition
constexpr int32_t kFirstPrefix = 64;  // top_p or min_p without top_k: first guess of the prefix
constexpr int32_t kPrefixGrowth = 8;

static_assert(kMaxBlock % kLanes == 0 && kDrawBlock % kLanes == 0);

constexpr float kInfinity = std::numeric_limits<float>::infinity();

inline bool not_finite(float x) {
  return (std::bit_cast<uint32_t>(x) & 0x7f800000u) == 0x7f800000u;
}

float fold_lanes(float* lane) {
  for (int32_t step = kLanes / 2; step > 0; step /= 2) {
    for (int32_t i = 0; i < step; ++i) lane[i] = lane[i] + lane[i + step];
  }
  return lane[0];
}

// ---- Passes over the row ----

// Largest value of x[0..n). If one is not finite, clears *finite and the result means nothing.
float block_maximum(const float* x, int32_t n, bool* finite) {
  float best = -kInfinity;
  if (n == kMaxBlock) {  // fixed trip counts: compilers turn the lanes into vectors
    float lane[kLanes];
    uint32_t bad[kLanes];
    for (int32_t i = 0; i < kLanes; ++i) {
      lane[i] = x[i];
      bad[i] = not_finite(x[i]);
    }
    for (int32_t base = kLanes; base < kMaxBlock; base += kLanes) {
      for (int32_t i = 0; i < kLanes; ++i) {
        const float v = x[base + i];
        lane[i] = v > lane[i] ? v : lane[i];
        bad[i] |= static_cast<uint32_t>(not_finite(v));
      }
    }
    uint32_t any = 0;
    for (int32_t i = 0; i < kLanes; ++i) {
      best = lane[i] > best ? lane[i] : best;
      any |= bad[i];
    }
    if (any != 0) *finite = false;
    return best;
  }
  for (int32_t i = 0; i < n; ++i) {
    best = x[i] > best ? x[i] : best;
    if (not_finite(x[i])) *finite = false;
  }
  return best;
}

// Finite check and the largest logit of every block of 64. False: a logit is not finite.
bool scan_row(const float* logits, int32_t n, std::vector<float>& block_max) {
  block_max.resize((n + kMaxBlock - 1) / kMaxBlock);
  bool finite = true;
  for (int32_t base = 0, b = 0; base < n; base += kMaxBlock, ++b) {
    block_max[b] = block_maximum(logits + base, std::min(kMaxBlock, n - base), &finite);
  }
  return finite;
}

// weights[id] = exp(logits[id] / temperature - zmax) for the whole row.
void weigh_row(const float* logits, int32_t n, float temperature, float zmax, float* weights) {
  for (int32_t id = 0; id < n; ++id) weights[id] = exp_f32(logits[id] / temperature - zmax);
}

// Sum of n weights by sixteen lanes; the missing ones of the last group count as +0.
float sum_lanes(const float* weights, int32_t n) {
  float lane[kLanes] = {};
  int32_t base = 0;
  for (; base + kLanes <= n; base += kLanes) {
    for (int32_t i = 0; i < kLanes; ++i) lane[i] = lane[i] + weights[base + i];
  }
  for (int32_t i = 0; base + i < n; ++i) lane[i] = lane[i] + weights[base + i];
  return fold_lanes(lane);
}

// ---- The sorted prefix ----

bool before(const SamplerCandidate& a, const SamplerCandidate& b) {
  return a.z > b.z || (a.z == b.z && a.id < b.id);
}

// Fills scratch.candidates with the first `count` candidates of the whole order, sorted (all of
// them if there are fewer). Division by a positive number keeps the order, so the largest z of a
// block is that of its largest logit. At least `count` values reach the count-th largest block
// maximum; that is the threshold, and only blocks that reach it are read again.
void collect_prefix(const float* logits, int32_t n, float temperature, int32_t count,
                    SamplerScratch& scratch) {
  const auto& block_max = scratch.block_max;  // as z
  float threshold = -kInfinity;
  if (static_cast<size_t>(count) < block_max.size()) {
    scratch.order = block_max;
    const auto nth = scratch.order.begin() + (count - 1);
    std::nth_element(scratch.order.begin(), nth, scratch.order.end(), std::greater<float>());
    threshold = *nth;
  }
  auto& candidates = scratch.candidates;
  candidates.clear();
  for (int32_t base = 0, b = 0; base < n; base += kMaxBlock, ++b) {
    if (block_max[b] < threshold) continue;
    const int32_t end = std::min(base + kMaxBlock, n);
    for (int32_t id = base; id < end; ++id) {
      const float z = logits[id] / temperature;
      if (z >= threshold) candidates.push_back({z, id});
    }
  }
  if (static_cast<size_t>(count) < candidates.size()) {
    std::nth_element(candidates.begin(), candidates.begin() + count, candidates.end(), before);
    candidates.resize(count);
  }
  std::sort(candidates.begin(), candidates.end(), before);
}

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
                  float zmax, SamplerScratch& scratch) {
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
      scratch.weights.resize(n);
      weigh_row(logits, n, params.temperature, zmax, scratch.weights.data());
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

int32_t argmax_row(const float* logits, int32_t n) {
  bool finite = true;
  float best = -kInfinity;
  int32_t best_base = 0;
  for (int32_t base = 0; base < n; base += kMaxBlock) {
    const float m = block_maximum(logits + base, std::min(kMaxBlock, n - base), &finite);
    if (m > best) {
      best = m;
      best_base = base;
    }
  }
  if (!finite) return -1;
  for (int32_t id = best_base; id < n; ++id) {
    if (logits[id] == best) return id;
  }
  return -1;
}

int32_t sample_row(const float* logits, int32_t vocab_size, const SamplingParams& params,
                   SamplerScratch& scratch) {
  // Penalties, logit bias and the grammar mask come here, in this order: after a finite check of
  // the raw row they write a copy of it into the scratch, masked ids as -inf, and the rest reads
  // that.
  if (!(params.temperature > 0.0f)) return argmax_row(logits, vocab_size);

  if (vocab_size < 1 || !scan_row(logits, vocab_size, scratch.block_max)) return -1;
  float zmax = -kInfinity;
  for (float& m : scratch.block_max) {
    m = m / params.temperature;
    zmax = m > zmax ? m : zmax;
  }
  if (not_finite(zmax)) return argmax_row(logits, vocab_size);

  const float u = sampling_uniform(params.seed, params.output_index, params.choice_index);
  const bool top_k_on = params.top_k > 0 && params.top_k < vocab_size;
  if (top_k_on || params.top_p < 1.0f || params.min_p > 0.0f) {
    truncate_row(logits, vocab_size, params, top_k_on, zmax, scratch);
    return draw_from_prefix(scratch, u);
  }
  scratch.weights.resize(vocab_size);
  weigh_row(logits, vocab_size, params.temperature, zmax, scratch.weights.data());
  return draw_from_row(scratch.weights.data(), vocab_size, u, scratch.block_sums);
}

}  // namespace draftproof
