#include "suffix_index.h"

#include <algorithm>
#include <bit>
#include <queue>
#include <stdexcept>
#include <utility>

namespace draftproof {
namespace {

__extension__ typedef unsigned __int128 uint128;

constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;
constexpr uint64_t kBase = 0x12d3f5b7a96c841bull % kPrime;  // any large odd number
constexpr int kLogs = 31;
constexpr uint32_t kDirect = 16;  // tokens compared one by one before hashes are

constexpr uint64_t multiply(uint64_t a, uint64_t b) {
  const uint128 product = static_cast<uint128>(a) * b;
  const uint64_t sum =
      (static_cast<uint64_t>(product) & kPrime) + static_cast<uint64_t>(product >> 61);
  return sum >= kPrime ? sum - kPrime : sum;
}

// kBase to the power 2^j.
constexpr std::array<uint64_t, kLogs> kPowers = [] {
  std::array<uint64_t, kLogs> powers{};
  powers[0] = kBase;
  for (int j = 1; j < kLogs; ++j) powers[j] = multiply(powers[j - 1], powers[j - 1]);
  return powers;
}();

}  // namespace

// ---- the timeline

void SuffixIndex::append(const int32_t* tokens, size_t n) {
  if (n > kMaxTokens - end_) throw std::length_error("SuffixIndex: too many tokens");
  for (size_t i = 0; i < n; ++i)
    if (tokens[i] < 0) throw std::invalid_argument("SuffixIndex: tokens must be >= 0");
  for (size_t i = 0; i < n; ++i) push(tokens[i]);
}

// Breaks count up from the smallest integer: each is unlike anything else, and an older one sorts
// before a newer one as the begin of the timeline does, so dropping the oldest run keeps the order.
void SuffixIndex::append_break() {
  if (end_ == kMaxTokens) throw std::length_error("SuffixIndex: too many tokens");
  breaks_.push_back(end_);
  push(next_break_++);
}

void SuffixIndex::push(int32_t token) {
  updates_ = 2;  // token and hash
  if (end_ / kChunkTokens == chunks_.size())
    chunks_.push_back(std::make_unique_for_overwrite<Chunk>());
  Chunk& c = chunk(end_);
  const uint64_t before = prefix_hash(end_);
  const uint64_t sum = multiply(before, kBase) + (static_cast<uint32_t>(token) + uint64_t{1});
  c.token[end_ % kChunkTokens] = token;
  c.hash[end_ % kChunkTokens] = sum >= kPrime ? sum - kPrime : sum;
  const uint32_t e = end_++;
  if (is_end(e)) insert(e);
  max_updates_ = std::max(max_updates_, updates_);
}

bool SuffixIndex::is_end(uint32_t e) const {
  return e > begin_ && e < end_ && token(e) >= 0 && token(e - 1) >= 0;
}

void SuffixIndex::truncate(uint32_t end) {
  if (end < begin_ || end > end_)
    throw std::out_of_range("SuffixIndex: truncate to a place it hasn't");
  while (end_ > end) {
    if (is_end(end_ - 1)) remove(end_ - 1);
    --end_;
    if (!breaks_.empty() && breaks_.back() == end_) {
      breaks_.pop_back();
      --next_break_;
    }
  }
  // The chunk of the last token stays: its hash begins the next block.
  while (chunks_.size() * size_t{kChunkTokens} >= size_t{end_} + 2 * kChunkTokens)
    chunks_.pop_back();
}

void SuffixIndex::drop_first_run() {
  if (breaks_.empty()) return;
  const uint32_t stop = breaks_.front() + 1;
  for (uint32_t e = begin_ + 1; e < stop; ++e)
    if (is_end(e)) remove(e);
  const uint32_t first = begin_ ? begin_ - 1 : 0;
  begin_ = stop;
  breaks_.erase(breaks_.begin());
  // Token stop - 1 stays: its hash is the prefix hash of the new begin.
  for (uint32_t c = first / kChunkTokens; c < (stop - 1) / kChunkTokens; ++c) chunks_[c].reset();
}

size_t SuffixIndex::memory_bytes() const {
  size_t held = 0;
  for (const auto& c : chunks_) held += c ? sizeof(Chunk) : 0;
  return held + chunks_.capacity() * sizeof(chunks_[0]) + breaks_.capacity() * sizeof(uint32_t);
}

// ---- comparing two places

// Of the 2^log2 tokens before e.
uint64_t SuffixIndex::block_hash(uint32_t e, int log2) const {
  const uint64_t head = multiply(prefix_hash(e - (1u << log2)), kPowers[log2]);
  const uint64_t whole = prefix_hash(e);
  return whole >= head ? whole - head : whole + kPrime - head;
}

bool SuffixIndex::same_block(const SuffixIndex& of, uint32_t e, uint32_t node, int log2) const {
  reads_ += 1;
  return of.block_hash(e, log2) == block_hash(node, log2);
}

// lce(node) >= length, in O(1): two blocks cover any length.
bool SuffixIndex::reaches(const SuffixIndex& of, uint32_t e, uint32_t node, uint32_t length) const {
  if (node - begin_ < length) return false;
  if (of.token(e - 1) != token(node - 1)) return false;
  const int log2 = std::bit_width(length) - 1;
  const uint32_t rest = length - (1u << log2);
  return same_block(of, e, node, log2) && same_block(of, e - rest, node - rest, log2);
}

uint32_t SuffixIndex::lce(const SuffixIndex& of, uint32_t e, uint32_t node) const {
  const uint32_t limit = std::min(e - of.begin_, node - begin_);
  uint32_t n = 0;
  reads_ += 1;
  for (const uint32_t stop = std::min(limit, kDirect); n < stop; ++n)
    if (of.token(e - 1 - n) != token(node - 1 - n)) return n;
  int j = 4;
  while (j < kLogs && (1u << j) <= limit - n && same_block(of, e - n, node - n, j)) n += 1u << j++;
  while (--j >= 0)
    if ((1u << j) <= limit - n && same_block(of, e - n, node - n, j)) n += 1u << j;
  return n;
}

// Order: the texts before the two places, read backwards; one that ends first comes first.
bool SuffixIndex::goes_left(const SuffixIndex& of, uint32_t e, uint32_t node, uint32_t lce) const {
  if (lce == e - of.begin_) return lce != node - begin_;
  if (lce == node - begin_) return false;
  return of.token(e - 1 - lce) < token(node - 1 - lce);
}

// ---- questions

SuffixIndex::Descent SuffixIndex::descend(const SuffixIndex& of, uint32_t e) const {
  if (&of != this && !of.breaks_.empty())
    throw std::invalid_argument("SuffixIndex: the index asked for has breaks");
  Descent d;
  for (uint32_t node = root_; node != 0;) {
    const uint32_t shared = lce(of, e, node);
    d.steps[d.depth++] = {node, shared};
    d.longest = std::max(d.longest, shared);
    node = goes_left(of, e, node, shared) ? left(node) : right(node);
  }
  return d;
}

// All ends that reach the longest match, as O(log n) nodes and whole subtrees.
SuffixIndex::Pieces SuffixIndex::longest(const SuffixIndex& of, const Descent& descent) const {
  const uint32_t e = of.end_, length = descent.longest;
  Pieces pieces;
  if (length == 0) return pieces;
  pieces.reserve(2 * kMaxDepth);
  int i = 0;
  while (descent.steps[i].lce < length) ++i;
  const uint32_t top = descent.steps[i].node;
  pieces.push_back({top, false});
  for (uint32_t node = left(top); node != 0;) {
    reads_ += 1;
    if (reaches(of, e, node, length)) {
      pieces.push_back({node, false});
      if (right(node)) pieces.push_back({right(node), true});
      node = left(node);
    } else {
      node = right(node);
    }
  }
  for (uint32_t node = right(top); node != 0;) {
    reads_ += 1;
    if (reaches(of, e, node, length)) {
      pieces.push_back({node, false});
      if (left(node)) pieces.push_back({left(node), true});
      node = right(node);
    } else {
      node = left(node);
    }
  }
  return pieces;
}

SuffixMatch SuffixIndex::match_of(const Pieces& pieces, uint32_t length) const {
  SuffixMatch m{length, 0, 0};
  for (const Piece& p : pieces) {
    m.count += p.whole ? size(p.node) : 1;
    m.source = std::max(m.source, p.whole ? newest(p.node) : p.node);
  }
  return m;
}

SuffixMatch SuffixIndex::longest_match(const SuffixIndex& of) const {
  const Descent descent = descend(of, of.end_);
  const SuffixMatch m = match_of(longest(of, descent), descent.longest);
  finish_query();
  return m;
}

SuffixDrafts SuffixIndex::drafts(const SuffixIndex& of, uint32_t k, uint32_t max_candidates) const {
  SuffixDrafts out;
  const Descent descent = descend(of, of.end_);
  const Pieces pieces = longest(of, descent);
  const SuffixMatch m = match_of(pieces, descent.longest);
  if (m.count > 0) out.recent = vote(of, {m.source}, k);
  if (m.count > 1)
    out.frequent = vote(of, newest_of(pieces, max_candidates), k);
  else
    out.frequent = out.recent;
  out.recent.match = out.frequent.match = m;
  finish_query();
  return out;
}

// The n newest ends of the pieces, newest first.
std::vector<uint32_t> SuffixIndex::newest_of(const Pieces& pieces, uint32_t n) const {
  std::priority_queue<std::pair<uint32_t, Piece>, std::vector<std::pair<uint32_t, Piece>>,
                      decltype([](const auto& a, const auto& b) { return a.first < b.first; })>
      heap;
  const auto push_tree = [&](uint32_t node) {
    if (node) heap.push({newest(node), {node, true}});
  };
  for (const Piece& p : pieces) heap.push({p.whole ? newest(p.node) : p.node, p});
  std::vector<uint32_t> ends;
  while (!heap.empty() && ends.size() < n) {
    const Piece p = heap.top().second;
    heap.pop();
    reads_ += 1;
    if (!p.whole) {
      ends.push_back(p.node);
      continue;
    }
    heap.push({p.node, {p.node, false}});
    push_tree(left(p.node));
    push_tree(right(p.node));
  }
  return ends;
}

// sources: ends, newest first.
SuffixDraft SuffixIndex::vote(const SuffixIndex& of, std::vector<uint32_t> sources,
                              uint32_t k) const {
  const bool own = &of == this;
  SuffixDraft draft;
  draft.voters = static_cast<uint32_t>(sources.size());
  std::vector<int32_t> ballots(sources.size());
  for (uint32_t j = 0; j < k; ++j) {
    size_t voters = 0;
    for (const uint32_t s : sources) {
      const uint32_t place = s + j;
      if (place >= end_ && !own) continue;
      const int32_t t = place < end_ ? token(place) : draft.tokens[place - end_];
      if (t < 0) continue;
      sources[voters] = s;
      ballots[voters++] = t;
    }
    if (voters == 0) break;
    reads_ += sources.size();
    sources.resize(voters);
    std::ptrdiff_t votes = 0;
    int32_t winner = 0;
    for (size_t i = 0; i < voters; ++i) {
      const auto mine = std::count(ballots.begin() + i, ballots.begin() + voters, ballots[i]);
      if (mine > votes) {  // the first of a token's ballots counts them all
        votes = mine;
        winner = ballots[i];
      }
    }
    size_t kept = 0;
    for (size_t i = 0; i < voters; ++i)
      if (ballots[i] == winner) sources[kept++] = sources[i];
    sources.resize(kept);
    if (j == 0) draft.support = static_cast<uint32_t>(kept);
    draft.tokens.push_back(winner);
  }
  return draft;
}

void SuffixIndex::finish_query() const {
  max_reads_ = std::max(max_reads_, reads_);
  reads_ = 0;
}

// ---- the tree

void SuffixIndex::refresh(uint32_t node) {
  Chunk& c = chunk(node);
  const uint32_t l = left(node), r = right(node), i = node % kChunkTokens;
  c.size[i] = 1 + size(l) + size(r);
  c.newest[i] = std::max(node, std::max(newest(l), newest(r)));
  c.height[i] = static_cast<uint8_t>(1 + std::max(height(l), height(r)));
  updates_ += 1;
}

uint32_t SuffixIndex::rotate_left(uint32_t node) {
  const uint32_t up = right(node);
  right(node) = left(up);
  left(up) = node;
  updates_ += 2;
  refresh(node);
  refresh(up);
  return up;
}

uint32_t SuffixIndex::rotate_right(uint32_t node) {
  const uint32_t up = left(node);
  left(node) = right(up);
  right(up) = node;
  updates_ += 2;
  refresh(node);
  refresh(up);
  return up;
}

// Returns the root of the subtree that stood under `node`.
uint32_t SuffixIndex::balance(uint32_t node) {
  const int tilt = height(right(node)) - height(left(node));
  if (tilt > 1) {
    const uint32_t r = right(node);
    if (height(left(r)) > height(right(r))) {
      right(node) = rotate_right(r);
      updates_ += 1;
    }
    return rotate_left(node);
  }
  if (tilt < -1) {
    const uint32_t l = left(node);
    if (height(right(l)) > height(left(l))) {
      left(node) = rotate_left(l);
      updates_ += 1;
    }
    return rotate_right(node);
  }
  refresh(node);
  return node;
}

// path[0 .. depth) leads to the parent of `from`, whose place `to` takes.
void SuffixIndex::relink(const uint32_t* path, int depth, uint32_t from, uint32_t to) {
  if (depth == 0)
    root_ = to;
  else if (left(path[depth - 1]) == from)
    left(path[depth - 1]) = to;
  else
    right(path[depth - 1]) = to;
  updates_ += 1;
}

void SuffixIndex::rebalance(const uint32_t* path, int depth) {
  while (depth > 0) {
    const uint32_t node = path[--depth];
    const uint32_t top = balance(node);
    if (top != node) relink(path, depth, node, top);
  }
}

void SuffixIndex::insert(uint32_t e) {
  uint32_t path[kMaxDepth];
  int depth = 0;
  bool to_left = false;
  for (uint32_t node = root_; node != 0;) {
    path[depth++] = node;
    to_left = goes_left(*this, e, node, lce(*this, e, node));
    node = to_left ? left(node) : right(node);
  }
  left(e) = right(e) = 0;
  refresh(e);
  if (depth == 0)
    root_ = e;
  else
    (to_left ? left(path[depth - 1]) : right(path[depth - 1])) = e;
  updates_ += 3;
  rebalance(path, depth);
  reads_ = 0;
}

void SuffixIndex::remove(uint32_t e) {
  uint32_t path[kMaxDepth + 1] = {};
  int depth = 0;
  for (uint32_t node = root_; node != e;) {
    path[depth++] = node;
    node = goes_left(*this, e, node, lce(*this, e, node)) ? left(node) : right(node);
  }
  if (left(e) == 0 || right(e) == 0) {
    relink(path, depth, e, left(e) ? left(e) : right(e));
  } else {  // the next end in order takes e's place
    const int place = depth;
    uint32_t next = right(e);
    path[depth++] = e;
    while (left(next) != 0) {
      path[depth++] = next;
      next = left(next);
    }
    relink(path, depth, next, right(next));
    left(next) = left(e);
    right(next) = right(e);
    relink(path, place, e, next);
    path[place] = next;
  }
  rebalance(path, depth);
  reads_ = 0;
}

}  // namespace draftproof
