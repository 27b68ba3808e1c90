// Fixed trip counts: compilers turn the sixteen lanes into vectors without touching their order.

#include "row_passes.h"

#include <algorithm>
#include <functional>

namespace draftproof {
namespace {

constexpr int32_t kLanes = 16;
constexpr int32_t kMaxBlock = 64;  // ids per block of scan_row; only speed depends on it

static_assert(kMaxBlock % kLanes == 0);

float fold_lanes(float* lane) {
  for (int32_t step = kLanes / 2; step > 0; step /= 2) {
    for (int32_t i = 0; i < step; ++i) lane[i] = lane[i] + lane[i + step];
  }
  return lane[0];
}

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

bool before(const SamplerCandidate& a, const SamplerCandidate& b) {
  return a.z > b.z || (a.z == b.z && a.id < b.id);
}

}  // namespace

bool scan_row(const float* row, int32_t n, std::vector<float>& block_max) {
  block_max.resize((n + kMaxBlock - 1) / kMaxBlock);
  bool finite = true;
  for (int32_t base = 0, b = 0; base < n; base += kMaxBlock, ++b) {
    block_max[b] = block_maximum(row + base, std::min(kMaxBlock, n - base), &finite);
  }
  return finite;
}

int32_t first_largest(const float* row, int32_t n, const std::vector<float>& block_max) {
  float best = -kInfinity;
  int32_t id = n;
  for (size_t b = 0; b < block_max.size(); ++b) {
    if (block_max[b] > best) {
      best = block_max[b];
      id = static_cast<int32_t>(b) * kMaxBlock;
    }
  }
  for (; id < n; ++id) {
    if (row[id] == best) return id;
  }
  return -1;
}

int32_t argmax_row(const float* row, int32_t n) {
  bool finite = true;
  float best = -kInfinity;
  int32_t best_base = 0;
  for (int32_t base = 0; base < n; base += kMaxBlock) {
    const float m = block_maximum(row + base, std::min(kMaxBlock, n - base), &finite);
    if (m > best) {
      best = m;
      best_base = base;
    }
  }
  if (!finite) return -1;
  for (int32_t id = best_base; id < n; ++id) {
    if (row[id] == best) return id;
  }
  return -1;
}

float sum_lanes(const float* weights, int32_t n) {
  float lane[kLanes] = {};
  int32_t base = 0;
  for (; base + kLanes <= n; base += kLanes) {
    for (int32_t i = 0; i < kLanes; ++i) lane[i] = lane[i] + weights[base + i];
  }
  for (int32_t i = 0; base + i < n; ++i) lane[i] = lane[i] + weights[base + i];
  return fold_lanes(lane);
}

// Division by a positive number keeps the order, so the largest z of a block is that of its largest
// value. At least `count` values reach the count-th largest block maximum; that is the threshold,
// and only blocks that reach it are read again.
void collect_prefix(const float* row, int32_t n, float divisor, int32_t count,
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
      const float z = row[id] / divisor;
      if (z >= threshold) candidates.push_back({z, id});
    }
  }
  if (static_cast<size_t>(count) < candidates.size()) {
    std::nth_element(candidates.begin(), candidates.begin() + count, candidates.end(), before);
    candidates.resize(count);
  }
  std::sort(candidates.begin(), candidates.end(), before);
}

}  // namespace draftproof
