// Owns: Philox 4x32-10, the counter-based random numbers of the sampler (J. K. Salmon et al.,
// "Parallel random numbers: as easy as 1, 2, 3", SC'11). Doesn't know: what the numbers decide.
#pragma once

#include <array>
#include <cstdint>

namespace draftproof {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

// One block: four random words from a 128-bit counter and a 64-bit key. No state.
static inline PhiloxCounter philox_4x32_10(PhiloxCounter counter, PhiloxKey key) {
  constexpr uint32_t kMultiplier0 = 0xd2511f53u, kMultiplier1 = 0xcd9e8d57u;
  constexpr uint32_t kWeyl0 = 0x9e3779b9u, kWeyl1 = 0xbb67ae85u;  // golden ratio, sqrt(3) - 1
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(kMultiplier0) * counter[0];
    const uint64_t p1 = static_cast<uint64_t>(kMultiplier1) * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

// The number in [0, 1) that decides one output token: a multiple of 2^-24, exact in float32.
static inline float sampling_uniform(uint64_t seed, uint32_t output_index, uint32_t choice_index) {
  const PhiloxKey key = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  const PhiloxCounter words = philox_4x32_10({output_index, choice_index, 0, 0}, key);
  return static_cast<float>(words[0] >> 8) * 0x1p-24f;
}

}  // namespace draftproof
