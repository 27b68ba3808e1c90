// Owns: an index over one timeline of integers that finds the longest earlier occurrence of the end
// of a timeline. Doesn't know: requests, drafts that were accepted, when drafting pays.
//
// Definitions (the slow twin in the tests is written from them, nothing else is promised):
//   A timeline is tokens (>= 0) and breaks. An end e is a place between two neighbouring tokens:
//   token e-1 before it, token e behind it. An end that has a break on either side doesn't exist.
//   lce(e) = how many tokens before e equal, one by one, the last tokens of the timeline asked
//   for; breaks equal nothing. Occurrences may overlap the end of history.
//   longest_match = the largest lce m of any end; count = ends that reach it; source = the newest
//   of them.
//   recent: the tokens behind the source. When an index is asked for its own end, a copy that
//   reaches the end of history reads the draft itself, so a cycle goes on for ever. A copy stops
//   at a break, and at the end of a foreign index.
//   frequent: the newest max_candidates ends that reach m vote for every token; most votes win, a
//   tie goes to the token of the newest voter; those who voted otherwise, or whose copy has
//   stopped, drop out.
//
// Structure: an AVL tree of all ends, ordered by the text before them read backwards. The ends that
// share m tokens with a given end are neighbours in that order, so their number, the newest, and
// the longest match come from one descent, with a worst case and not an amortised one. Two places
// are compared by hashes of blocks of 2^j tokens (polynomial, modulo 2^61 - 1): O(log n) whatever
// the text. A collision (chance about n / 2^61) would lengthen a match, so spoil a draft, no more.
//
// Bounds, n = tokens held: append writes at most kMaxUpdates places (links, hashes, node summaries)
// per token on any text; truncate and drop_first_run take O(log n) per removed token; a query reads
// O(log^2 n + max_candidates * (log n + k)) places. Memory: kBytesPerToken per token, in chunks of
// kChunkTokens; nothing is ever moved.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace draftproof {

struct SuffixMatch {
  uint32_t length = 0;  // tokens shared with the end of history, 0: no match
  uint32_t source = 0;  // absolute position of the token behind the newest occurrence
  uint32_t count = 0;   // ends that reach `length`
};

struct SuffixDraft {
  SuffixMatch match;
  uint32_t support = 0;  // votes for the first token (recent: 1)
  uint32_t voters = 0;   // ends that were asked (recent: 1)
  std::vector<int32_t> tokens;
};

struct SuffixDrafts {
  SuffixDraft recent, frequent;
};

class SuffixIndex {
 public:
  static constexpr uint32_t kChunkTokens = 1024;
  static constexpr uint32_t kMaxTokens = 1u << 30;  // positions ever used, dropped ones included
  static constexpr int kMaxDepth = 44;              // AVL: 1.4405 log2(kMaxTokens + 2)
  static constexpr int kMaxUpdates = 64;

  SuffixIndex() = default;
  SuffixIndex(const SuffixIndex&) = delete;
  SuffixIndex& operator=(const SuffixIndex&) = delete;

  // tokens >= 0, else std::invalid_argument and nothing is appended.
  void append(const int32_t* tokens, size_t n);
  void append_break();
  // As if everything from position `end` on had never been appended. begin() <= end <= this->end().
  void truncate(uint32_t end);
  // Forgets the oldest tokens up to and including the first break. Nothing without a break.
  void drop_first_run();

  uint32_t begin() const { return begin_; }
  uint32_t end() const { return end_; }
  size_t memory_bytes() const;

  // The end of `of` (*this, or an index without breaks) looked up in this index; at most k tokens.
  SuffixMatch longest_match(const SuffixIndex& of) const;
  SuffixDrafts drafts(const SuffixIndex& of, uint32_t k, uint32_t max_candidates) const;

  // Work done, for tests of the bounds: places written by the costliest append of one token, places
  // read by the costliest query.
  uint64_t max_append_updates() const { return max_updates_; }
  uint64_t max_query_reads() const { return max_reads_; }

 private:
  // Node e is the end e, a place in the tree; 0 = none (e >= 1 always).
  struct Chunk {
    int32_t token[kChunkTokens];
    uint64_t hash[kChunkTokens];  // of all tokens up to and including this one
    uint32_t left[kChunkTokens], right[kChunkTokens];
    uint32_t newest[kChunkTokens], size[kChunkTokens];  // over the subtree
    uint8_t height[kChunkTokens];
  };
  struct Step {
    uint32_t node, lce;
  };
  // The nodes from the root to where the end asked for would stand, and their lce.
  struct Descent {
    std::array<Step, kMaxDepth> steps;
    int depth = 0;
    uint32_t longest = 0;
  };
  struct Piece {
    uint32_t node;
    bool whole;  // the subtree, or the node alone
  };
  using Pieces = std::vector<Piece>;

 public:
  static constexpr size_t kBytesPerToken = sizeof(Chunk) / kChunkTokens;

 private:
  Chunk& chunk(uint32_t i) const { return *chunks_[i / kChunkTokens]; }
  int32_t token(uint32_t i) const { return chunk(i).token[i % kChunkTokens]; }
  uint32_t& left(uint32_t i) const { return chunk(i).left[i % kChunkTokens]; }
  uint32_t& right(uint32_t i) const { return chunk(i).right[i % kChunkTokens]; }
  uint32_t size(uint32_t i) const { return i ? chunk(i).size[i % kChunkTokens] : 0; }
  uint32_t newest(uint32_t i) const { return i ? chunk(i).newest[i % kChunkTokens] : 0; }
  int height(uint32_t i) const { return i ? chunk(i).height[i % kChunkTokens] : 0; }
  uint64_t prefix_hash(uint32_t e) const {
    return e ? chunk(e - 1).hash[(e - 1) % kChunkTokens] : 0;
  }
  uint64_t block_hash(uint32_t e, int log2) const;

  void push(int32_t token);
  bool is_end(uint32_t e) const;
  bool same_block(const SuffixIndex& of, uint32_t e, uint32_t node, int log2) const;
  bool reaches(const SuffixIndex& of, uint32_t e, uint32_t node, uint32_t length) const;
  uint32_t lce(const SuffixIndex& of, uint32_t e, uint32_t node) const;
  bool goes_left(const SuffixIndex& of, uint32_t e, uint32_t node, uint32_t lce) const;
  Descent descend(const SuffixIndex& of, uint32_t e) const;
  Pieces longest(const SuffixIndex& of, const Descent& descent) const;
  SuffixMatch match_of(const Pieces& pieces, uint32_t length) const;
  std::vector<uint32_t> newest_of(const Pieces& pieces, uint32_t n) const;
  SuffixDraft vote(const SuffixIndex& of, std::vector<uint32_t> sources, uint32_t k) const;
  void finish_query() const;

  void insert(uint32_t e);
  void remove(uint32_t e);
  void refresh(uint32_t node);
  uint32_t rotate_left(uint32_t node);
  uint32_t rotate_right(uint32_t node);
  uint32_t balance(uint32_t node);
  void relink(const uint32_t* path, int depth, uint32_t from, uint32_t to);
  void rebalance(const uint32_t* path, int depth);

  std::vector<std::unique_ptr<Chunk>> chunks_;  // by absolute position; dropped ones are null
  std::vector<uint32_t> breaks_;                // positions, ascending
  uint32_t begin_ = 0, end_ = 0, root_ = 0;
  int32_t next_break_ = INT32_MIN;
  uint64_t updates_ = 0, max_updates_ = 0;
  mutable uint64_t reads_ = 0, max_reads_ = 0;
};

}  // namespace draftproof
