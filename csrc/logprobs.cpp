#include "logprobs.h"

#include <algorithm>

#include "simd/log_spec.h"

namespace draftproof {

float row_logprobs(const float* logits, int32_t vocab_size, int32_t id, int32_t count,
                   const Kernels& kernels, SamplerScratch& scratch, int32_t* top_ids,
                   float* top_logprobs) {
  std::fill_n(top_ids, count, -1);
  std::fill_n(top_logprobs, count, -kInfinity);
  if (id < 0 || id >= vocab_size || !scan_row(logits, vocab_size, scratch.block_max))
    return std::numeric_limits<float>::quiet_NaN();
  const float largest = *std::max_element(scratch.block_max.begin(), scratch.block_max.end());
  scratch.weights.resize(vocab_size);
  kernels.exp_row(logits, vocab_size, 1.0f, largest, scratch.weights.data());
  const float log_sum = log_f32(sum_lanes(scratch.weights.data(), vocab_size));
  const auto logprob = [&](float logit) {
    const float below = logit - largest;
    return below - log_sum;
  };
  if (count > 0) {
    collect_prefix(logits, vocab_size, 1.0f, count, scratch);
    for (size_t i = 0; i < scratch.candidates.size(); ++i) {
      top_ids[i] = scratch.candidates[i].id;
      top_logprobs[i] = logprob(logits[top_ids[i]]);
    }
  }
  return logprob(logits[id]);
}

}  // namespace draftproof
