// Owns: the logprobs of one row of raw logits. Doesn't know: how a token was chosen; temperature,
// penalties and masks change nothing here.
//
// This comment is the definition (arithmetic version 1). Over the ids below vocab_size:
//
//   m     the largest logit
//   sum   exp(l - m) of all ids by sixteen lanes: lane id mod 16 adds by ascending id, starting
//   with
//         +0, then the lanes are folded +8, +4, +2, +1
//   logprob(id) = (l[id] - m) - log(sum)
//
// exp and log are those of simd/exp_spec.h and simd/log_spec.h. The likeliest ids are ordered by
// (logit descending, id ascending).
#pragma once

#include <cstdint>

#include "kernels.h"
#include "row_passes.h"

namespace draftproof {

// Returns the logprob of `id` and fills the `count` likeliest ids with theirs; places beyond the
// vocabulary get id -1 and -inf. NaN, and places like those, if a logit is not finite or `id` is
// outside the vocabulary. logits: [>= vocab_size]; top_ids, top_logprobs: [count].
float row_logprobs(const float* logits, int32_t vocab_size, int32_t id, int32_t count,
                   const Kernels& kernels, SamplerScratch& scratch, int32_t* top_ids,
                   float* top_logprobs);

}  // namespace draftproof
