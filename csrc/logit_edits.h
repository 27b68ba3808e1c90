// Owns: what a request changes in its logits before a token is chosen. Doesn't know: how it is
// chosen, drafts, grammars as such.
//
// This comment is the definition (arithmetic version 1). Every operation is one float32 operation,
// rounded to nearest even; l is the logit of one id below vocab_size, and the steps come in this
// order:
//
//   repetition   every id among the tokens (prompt and output): l > 0 ? l / repetition
//                                                                     : l * repetition
//   frequency    every id among the output tokens, c times: l = l - frequency * float(c)
//   presence     the same ids: l = l - presence
//   bias         every pair (id, b), in order: l = l + b
//                a value that is not finite now makes the row as unusable as such a logit would
//   mask         ids without a bit: l = -inf
//   bans         these ids: l = -inf, unless no other id is left
//
// The tokens of a row are those before it, whether committed or draft tokens of the same step, so
// that a row that verifies a draft sees what plain decoding would have seen there.
#pragma once

#include <cstddef>
#include <cstdint>

#include "row_passes.h"

namespace draftproof {

// Ids outside the vocabulary are ignored everywhere (a row of an image has such a token).
struct LogitEdits {
  const int32_t* tokens = nullptr;  // [num_tokens] prompt, then output
  size_t num_tokens = 0;
  size_t num_prompt = 0;
  float repetition = 1.0f;  // 1: off
  float frequency = 0.0f;   // 0: off
  float presence = 0.0f;    // 0: off
  const int32_t* bias_ids = nullptr;
  const float* bias = nullptr;  // [num_bias]
  size_t num_bias = 0;
  const uint32_t* mask = nullptr;  // [ceil(vocab / 32)] bit id % 32 of word id / 32; nullptr: off
  const int32_t* banned = nullptr;
  size_t num_banned = 0;
};

// Writes the edited row to scratch.edited and its block maxima to scratch.block_max. row: [>=
// vocab_size], all finite. False: the row can't be used, or the mask leaves nothing.
bool edit_row(const float* row, int32_t vocab_size, const LogitEdits& edits,
              SamplerScratch& scratch);

}  // namespace draftproof
