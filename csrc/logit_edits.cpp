#include "logit_edits.h"

#include <algorithm>

namespace draftproof {
namespace {

bool inside(int32_t id, int32_t vocab_size) { return id >= 0 && id < vocab_size; }

// False: a value is not finite any more.
bool penalize(float* row, int32_t vocab_size, const LogitEdits& edits, SamplerScratch& scratch) {
  if (edits.repetition == 1.0f && edits.frequency == 0.0f && edits.presence == 0.0f) return true;
  // 0: not seen; else 1 + how often among the output.
  auto& counts = scratch.counts;
  if (counts.size() < static_cast<size_t>(vocab_size)) counts.resize(vocab_size, 0);
  auto& seen = scratch.seen;
  seen.clear();
  for (size_t i = 0; i < edits.num_tokens; ++i) {
    const int32_t id = edits.tokens[i];
    if (!inside(id, vocab_size)) continue;
    if (counts[id] == 0) {
      seen.push_back(id);
      counts[id] = 1;
    }
    if (i >= edits.num_prompt) ++counts[id];
  }
  bool finite = true;
  for (const int32_t id : seen) {
    float l = row[id];
    l = l > 0.0f ? l / edits.repetition : l * edits.repetition;
    if (const int32_t count = counts[id] - 1; count > 0) {
      const float frequency = edits.frequency * static_cast<float>(count);
      l = l - frequency;
      l = l - edits.presence;
    }
    if (not_finite(l)) finite = false;
    row[id] = l;
    counts[id] = 0;
  }
  return finite;
}

bool add_bias(float* row, int32_t vocab_size, const LogitEdits& edits) {
  bool finite = true;
  for (size_t i = 0; i < edits.num_bias; ++i) {
    const int32_t id = edits.bias_ids[i];
    if (!inside(id, vocab_size)) continue;
    row[id] = row[id] + edits.bias[i];
    if (not_finite(row[id])) finite = false;
  }
  return finite;
}

// Without a branch per id: in half-open masks it would be guessed wrong every other time.
void apply_mask(float* row, int32_t vocab_size, const uint32_t* mask) {
  constexpr uint32_t kMasked = std::bit_cast<uint32_t>(-kInfinity);
  for (int32_t base = 0; base < vocab_size; base += 32) {
    uint32_t word = mask[base / 32];
    if (word == 0xffffffffu) continue;
    const int32_t end = std::min(base + 32, vocab_size);
    for (int32_t id = base; id < end; ++id, word >>= 1) {
      const uint32_t keep = 0u - (word & 1u);
      row[id] = std::bit_cast<float>((std::bit_cast<uint32_t>(row[id]) & keep) | (kMasked & ~keep));
    }
  }
}

// Scans the row; false if nothing is left of it.
bool has_any(const float* row, int32_t vocab_size, SamplerScratch& scratch) {
  scan_row(row, vocab_size, scratch.block_max);
  return std::any_of(scratch.block_max.begin(), scratch.block_max.end(),
                     [](float m) { return m > -kInfinity; });
}

}  // namespace

bool edit_row(const float* row, int32_t vocab_size, const LogitEdits& edits,
              SamplerScratch& scratch) {
  scratch.edited.assign(row, row + vocab_size);
  float* edited = scratch.edited.data();
  const bool penalized = penalize(edited, vocab_size, edits, scratch);
  if (!add_bias(edited, vocab_size, edits) || !penalized) return false;
  if (edits.mask != nullptr) apply_mask(edited, vocab_size, edits.mask);

  auto& kept = scratch.banned;
  kept.clear();
  for (size_t i = 0; i < edits.num_banned; ++i) {
    const int32_t id = edits.banned[i];
    if (!inside(id, vocab_size)) continue;
    kept.push_back(edited[id]);
    edited[id] = -kInfinity;
  }
  if (has_any(edited, vocab_size, scratch)) return true;
  if (kept.empty()) return false;
  for (size_t i = edits.num_banned; i-- > 0;) {  // backwards: an id may stand there twice
    if (!inside(edits.banned[i], vocab_size)) continue;
    edited[edits.banned[i]] = kept.back();
    kept.pop_back();
  }
  return has_any(edited, vocab_size, scratch);
}

}  // namespace draftproof
