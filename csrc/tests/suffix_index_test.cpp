// Owns: the checks of SuffixIndex that need no Python: against scans, and its bounds on bad
// streams. A plain program: prints what failed, returns the number of failures.

#include "../suffix_index.h"

#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <vector>

#include "check.h"

using namespace draftproof;

namespace {

// SplitMix64's step, for numbers that are the same everywhere.
uint32_t draw(uint64_t& state, uint32_t below) {
  uint64_t z = (state += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return static_cast<uint32_t>((z ^ (z >> 31)) >> 33) % below;
}

void append(SuffixIndex& index, std::vector<int32_t>& history, int32_t token) {
  index.append(&token, 1);
  history.push_back(token);
}

SuffixMatch scan(const std::vector<int32_t>& history) {
  const uint32_t n = static_cast<uint32_t>(history.size());
  SuffixMatch best;
  for (uint32_t e = 1; e < n; ++e) {
    uint32_t shared = 0;
    while (shared < e && history[e - 1 - shared] == history[n - 1 - shared]) ++shared;
    if (shared > best.length) best = {shared, e, 0};
    if (shared == best.length && shared > 0) best = {shared, e, best.count + 1};
  }
  return best;
}

void test_equals_a_scan() {
  for (uint32_t symbols = 1; symbols <= 5; ++symbols) {
    uint64_t state = symbols;
    SuffixIndex index;
    std::vector<int32_t> history;
    for (int step = 0; step < 600; ++step) {
      if (draw(state, 20) == 0) {
        const uint32_t end = draw(state, static_cast<uint32_t>(history.size()) + 1);
        index.truncate(end);
        history.resize(end);
      }
      append(index, history, static_cast<int32_t>(draw(state, symbols)));
      const SuffixMatch got = index.longest_match(index), want = scan(history);
      CHECK(got.length == want.length && got.source == want.source && got.count == want.count,
            "symbols %u, step %d: %u %u %u, not %u %u %u", symbols, step, got.length, got.source,
            got.count, want.length, want.source, want.count);
    }
  }
}

void test_work_is_bounded() {
  constexpr uint32_t kTokens = 200'000;
  for (const uint32_t symbols : {1u, 2u, 150'000u}) {
    for (const bool periodic : {false, true}) {
      uint64_t state = 7;
      SuffixIndex index;
      for (uint32_t i = 0; i < kTokens; ++i) {
        const int32_t token = static_cast<int32_t>(periodic ? i % symbols : draw(state, symbols));
        index.append(&token, 1);
        if (i % 101 == 0) index.drafts(index, 63, 16);
      }
      const double log = std::log2(kTokens);
      const double reads = 1.45 * log * (2 * log + 1) + 4.5 * log + 16 * (2 * log + 63);
      CHECK(index.max_append_updates() <= SuffixIndex::kMaxUpdates, "%llu updates",
            static_cast<unsigned long long>(index.max_append_updates()));
      CHECK(static_cast<double>(index.max_query_reads()) <= reads, "%llu reads",
            static_cast<unsigned long long>(index.max_query_reads()));
      const size_t bytes = SuffixIndex::kBytesPerToken * (kTokens + 2 * SuffixIndex::kChunkTokens);
      CHECK(index.memory_bytes() <= bytes, "%zu bytes", index.memory_bytes());
    }
  }
}

void test_a_cycle_has_no_end() {
  SuffixIndex index;
  std::vector<int32_t> history;
  for (int i = 0; i < 10; ++i) append(index, history, i % 3);
  const SuffixDrafts drafts = index.drafts(index, 50, 16);
  CHECK(drafts.recent.match.length == 7, "%u", drafts.recent.match.length);
  CHECK(drafts.recent.tokens.size() == 50, "%zu tokens", drafts.recent.tokens.size());
  for (size_t j = 0; j < drafts.recent.tokens.size(); ++j)
    CHECK(drafts.recent.tokens[j] == static_cast<int32_t>((10 + j) % 3), "token %zu", j);
}

void test_refusals() {
  SuffixIndex index;
  const int32_t bad[] = {1, -5};
  bool refused = false;
  try {
    index.append(bad, 2);
  } catch (const std::invalid_argument&) {
    refused = true;
  }
  CHECK(refused && index.end() == 0, "a negative token was taken");
}

}  // namespace

int main() {
  test_equals_a_scan();
  test_work_is_bounded();
  test_a_cycle_has_no_end();
  test_refusals();
  std::printf("%d failures\n", failures);
  return failures;
}
