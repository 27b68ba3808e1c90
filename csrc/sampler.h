// Owns: one token from one row of logits. Doesn't know: drafts, sequences, grammars, models.
//
// sample_row is a pure function: the same row, parameters, edits, seed and indices give the same
// token on every CPU, in every batch, with or without drafting. This comment is the definition
// (arithmetic version 1). All numbers are float32, every operation is rounded to nearest even, and
// exp is exp_f32 of simd/exp_spec.h. The steps come in this order:
//
//   finite check                              of the logits as they are
//   penalties, logit bias, grammar mask       logit_edits.h; a masked token gets the logit -inf,
//                                             whose weight is 0: it is never chosen
//   vocabulary-padding mask                   only ids 0 .. vocab_size - 1 are looked at
//   temperature                               temperature <= 0: the largest logit, lowest id first;
//                                             else z = logit / temperature
//   zmax                                      the largest z; weight w = exp(z - zmax), 0 .. 1. If
//                                             z overflowed so that zmax is not finite: greedy
//   top_k     on if 0 < top_k < vocab_size    keep the first top_k candidates
//   top_p     on if top_p < 1                 keep the shortest prefix with
//                                             sum of w >= top_p * normaliser
//   min_p     on if min_p > 0                 cut before the first candidate with w < min_p
//
// Candidates are ordered by (z descending, id ascending); -0 equals +0. Each step keeps a prefix of
// that order and never less than one candidate; if one of them is on, the prefix also ends before
// the first candidate with w = 0 (it could never be drawn). Sums over a prefix start with 0 and
// add in order. The normaliser of top_p is the sum over the candidates that top_k left: over
// the prefix if top_k is on, else over the vocabulary by sixteen lanes: lane id mod 16 adds its
// weights by ascending id, starting with +0, then the lanes are folded +8, +4, +2, +1.
//
// The draw: u = sampling_uniform(seed, output_index, choice_index), a multiple of 2^-24 below 1.
//   Prefix (a step is on): total = sum of the kept weights in order, target = u * total; the token
//     is the first whose running sum is > target.
//   Whole vocabulary (none is on): nothing is sorted. Blocks of 1024 ids; a block's sum is taken by
//     sixteen folded lanes as above; block sums are added in order; total = the last running sum,
//     target = u * total. The block is the first whose running sum is > target. Inside, the
//     running sum of the blocks before it goes on by ascending id; the token is the first with a
//     running sum > target, or else (the two sums round differently) the block's last token with
//     w > 0.
#pragma once

#include <cstdint>

#include "kernels.h"
#include "logit_edits.h"
#include "row_passes.h"

namespace draftproof {

// Checked by the caller: temperature finite, top_p and min_p in 0 .. 1.
struct SamplingParams {
  float temperature = 0.0f;  // 0: greedy
  int32_t top_k = 0;         // 0: off
  float top_p = 1.0f;        // 1: off
  float min_p = 0.0f;        // 0: off
  uint64_t seed = 0;
  uint32_t output_index = 0;  // position of the token in the output, 0 for the first
  uint32_t choice_index = 0;  // which of the n choices of the request
  const LogitEdits* edits = nullptr;
};

// Returns the token id, or -1 if a logit below vocab_size is not finite or no token is allowed (or
// vocab_size < 1). logits: [>= vocab_size] float32. The row of `kernels` changes the time only.
int32_t sample_row(const float* logits, int32_t vocab_size, const SamplingParams& params,
                   const Kernels& kernels, SamplerScratch& scratch);

}  // namespace draftproof
