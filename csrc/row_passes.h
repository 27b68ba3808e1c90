// Owns: passes over one row of logits that choosing a token and reporting its logprob share, each
// in its one order. Doesn't know: what the numbers decide.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

namespace draftproof {

struct SamplerCandidate {
  float z;
  int32_t id;
};

// Working memory, one per thread. Holds nothing between calls but capacity (`counts`: zeros).
struct SamplerScratch {
  std::vector<float> block_max;              // [ceil(vocab / 64)] largest value of 64 ids
  std::vector<float> order;                  // copy of block_max that selection permutes
  std::vector<SamplerCandidate> candidates;  // the sorted prefix
  std::vector<float> weights;                // [vocab] or [prefix]
  std::vector<float> block_sums;             // [ceil(vocab / 1024)]
  std::vector<float> edited;                 // [vocab] the row after its edits
  std::vector<float> banned;                 // values of the ids that are banned for now
  std::vector<int32_t> counts;               // [vocab] see logit_edits.cpp
  std::vector<int32_t> seen;                 // ids with a count, in order of first appearance
};

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

inline bool not_finite(float x) {
  return (std::bit_cast<uint32_t>(x) & 0x7f800000u) == 0x7f800000u;
}

// Sets block_max to the largest value of every block of 64. False: a value is not finite; a NaN
// may be missing in block_max then, -inf is in order.
bool scan_row(const float* row, int32_t n, std::vector<float>& block_max);

// The lowest id of the largest value, given the row's block_max; -1 if all are -inf. -0 equals +0.
int32_t first_largest(const float* row, int32_t n, const std::vector<float>& block_max);

// The id of the largest of n values, the lowest id on a tie; -1 if one is not finite or n < 1.
int32_t argmax_row(const float* row, int32_t n);

// Sum of n weights by sixteen lanes: element i goes to lane i mod 16, lanes start with +0 and add
// in ascending order (missing elements are +0), and are folded +8, +4, +2, +1.
float sum_lanes(const float* weights, int32_t n);

// Fills scratch.candidates with the first `count` of all n by (z descending, id ascending),
// z = row[id] / divisor; all of them if there are fewer. scratch.block_max: of z.
void collect_prefix(const float* row, int32_t n, float divisor, int32_t count,
                    SamplerScratch& scratch);

}  // namespace draftproof
