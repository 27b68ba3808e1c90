// Set-up, checks and the loop over operations; the operations themselves are in player_ops.cpp.
#include "player.h"

#include <algorithm>
#include <stdexcept>

#include "fp_env.h"

namespace draftproof {
namespace {

constexpr size_t kSpanPartFloats = size_t{4}
                                   << 20;  // 16 MB: enough for 1 row x 32 heads x 32k positions
constexpr int kTilePairs = 48;             // (row, head) pairs of an attention tile

// A stride that is no power of two: rows at one power-of-two distance fight for cache sets.
size_t row_stride(int64_t width) { return (static_cast<size_t>(width) + 15) / 16 * 16 + 16; }

template <class Block>
size_t act_stride(int64_t width, int64_t block) {
  const size_t bytes = static_cast<size_t>((width + block - 1) / block) * sizeof(Block);
  return (bytes + 63) / 64 * 64 + 64;
}

}  // namespace

Player::Player(const Program& program, int max_rows, int max_logit_rows, int threads,
               const std::string& isa)
    : program_(program),
      kernels_(kernels_named(isa)),
      max_rows_(static_cast<size_t>(std::max(max_rows, 0))),
      max_logit_rows_(static_cast<size_t>(std::max(max_logit_rows, 0))),
      pool_(checked_threads(threads)) {
  if (max_rows < 1 || max_rows > 65536) throw std::invalid_argument("max_rows must be 1 .. 65536");
  if (max_logit_rows < 1 || max_logit_rows > max_rows)
    throw std::invalid_argument("max_logit_rows must be 1 .. max_rows");
  if (program.logits_buffer() < 0) throw std::invalid_argument("the program declares no logits");
  if (program.vector_width() == 0)
    throw std::invalid_argument("the program has no embedding and takes no vectors");
  lay_out_memory();
}

void Player::lay_out_memory() {
  // Offsets first (in bytes), pointers when the memory is there.
  std::vector<size_t> offsets;
  size_t bytes = 0;
  const auto take = [&bytes](size_t n) {
    const size_t at = bytes;
    bytes += (n + 255) / 256 * 256;
    return at;
  };
  for (const Buffer& b : program_.buffers()) {
    strides_.push_back(row_stride(b.width));
    const size_t rows = b.space == Space::kRows ? max_rows_ : max_logit_rows_;
    offsets.push_back(take(rows * strides_.back() * sizeof(float)));
  }
  int pairs = kTilePairs;
  for (const Op& op : program_.ops()) {
    if (op.kind == OpKind::kLinear || op.kind == OpKind::kSwigluLinear) {
      act32_stride_ = std::max(act32_stride_, act_stride<ActBlock32>(width(op.x), 32));
      act256_stride_ = std::max(act256_stride_, act_stride<ActBlock256>(width(op.x), 256));
    }
    if (op.kind == OpKind::kMoe) {
      act32_stride_ = std::max(act32_stride_, act_stride<ActBlock32>(width(op.x), 32));
      act256_stride_ = std::max(act256_stride_, act_stride<ActBlock256>(width(op.x), 256));
      const int64_t ff = program_.weights().experts(op.weights[0])[0].out_features;
      moe_.slots = std::max(moe_.slots, max_rows_ * static_cast<size_t>(op.used));
      moe_.x_stride = std::max(moe_.x_stride, row_stride(width(op.x)));
      moe_.hidden_stride = std::max(moe_.hidden_stride, row_stride(ff));
      moe_.parts_stride = std::max(moe_.parts_stride, row_stride(width(op.outs[0])));
      moe_.act32_stride = std::max({moe_.act32_stride, act_stride<ActBlock32>(width(op.x), 32),
                                    act_stride<ActBlock32>(ff, 32)});
      moe_.act256_stride = std::max({moe_.act256_stride, act_stride<ActBlock256>(width(op.x), 256),
                                     act_stride<ActBlock256>(ff, 256)});
    }
    if (op.kind == OpKind::kAttention) pairs = std::max(pairs, op.groups);
  }
  const size_t act32 = take(max_rows_ * act32_stride_), act256 = take(max_rows_ * act256_stride_);
  const size_t parts = take(kSpanPartFloats * sizeof(float));
  // Reserved; touched where a model has experts and only in the forms that they need.
  const size_t moe_x = take(moe_.slots * moe_.x_stride * sizeof(float)),
               moe_hidden = take(moe_.slots * moe_.hidden_stride * sizeof(float)),
               moe_parts = take(moe_.slots * moe_.parts_stride * sizeof(float)),
               moe_act32 = take(moe_.slots * moe_.act32_stride),
               moe_act256 = take(moe_.slots * moe_.act256_stride);
  memory_ = std::make_unique<Arena>(bytes);
  uint8_t* m = memory_->data();
  for (size_t offset : offsets) base_.push_back(reinterpret_cast<float*>(m + offset));
  act32_ = m + act32;
  act256_ = m + act256;
  span_parts_ = reinterpret_cast<float*>(m + parts);
  span_parts_floats_ = kSpanPartFloats;
  moe_.x = reinterpret_cast<float*>(m + moe_x);
  moe_.hidden = reinterpret_cast<float*>(m + moe_hidden);
  moe_.parts = reinterpret_cast<float*>(m + moe_parts);
  moe_.act32 = m + moe_act32;
  moe_.act256 = m + moe_act256;
  moe_.chosen.resize(moe_.slots);
  moe_.probabilities.resize(moe_.slots);

  const KvView kv = program_.kv().view(0, 0);
  const size_t part = static_cast<size_t>(pairs) * static_cast<size_t>(kLanes + kv.value_stride);
  for (int t = 0; t < pool_.size(); ++t) {
    ThreadState& state = threads_.emplace_back();
    state.scores.resize(static_cast<size_t>(pairs) * kSpan);
    state.partial.resize(part);
    state.state.resize(part);
    state.gate.resize(kRowBlock * kSwigluStride);
    state.up.resize(kRowBlock * kSwigluStride);
  }
  // Sections of one pass: at most three, and a linear operation has one per weight besides
  // quantizing.
  size_t sections = 0;
  for (const Op& op : program_.ops()) sections += 3 + op.weights.size();
  for (size_t i = 0; i < sections; ++i) sections_.emplace_back();
}

void Player::check(const Batch& b) const {
  const auto require = [](bool ok, const std::string& what) {
    if (!ok) throw std::invalid_argument("batch: " + what);
  };
  require(b.rows >= 1 && b.rows <= max_rows_, "rows must be 1 .. " + std::to_string(max_rows_));
  require(b.num_logit_rows <= max_logit_rows_,
          "logit_rows must be at most " + std::to_string(max_logit_rows_));
  for (size_t r = 0; r < b.rows; ++r) {
    const int64_t t = b.tokens[r];
    require(t < program_.vocab() && (t >= 0 || -1 - t < static_cast<int64_t>(b.num_vectors)),
            "token " + std::to_string(t) + " of row " + std::to_string(r) + " is out of range");
    for (int axis = 0; axis < 3; ++axis)
      require(b.positions[3 * r + static_cast<size_t>(axis)] >= 0, "a position is negative");
  }
  for (size_t i = 0; i < b.num_logit_rows; ++i) {
    const int64_t r = b.logit_rows[i];
    require(r >= 0 && r < static_cast<int64_t>(b.rows) && (i == 0 || r > b.logit_rows[i - 1]),
            "logit_rows must ascend within the rows");
  }
  for (size_t i = 0; i < b.num_pages; ++i)
    require(b.block_tables[i] >= 0 && b.block_tables[i] < program_.kv().num_pages(),
            "block_tables names a page that doesn't exist");
  for (const Op& op : program_.ops())
    require(op.kind != OpKind::kJoin || b.num_logit_rows == 0 ||
                b.logit_rows[0] + 1 >= width(op.outs[0]) / width(op.x),
            "the first marked row has too few rows before it to be joined with");
  int64_t rows = 0;
  for (size_t i = 0; i < b.num_segments; ++i) {
    const Segment& s = b.segments[i];
    require(s.rows >= 1 && s.first_position >= 0 && s.first_page >= 0,
            "a segment is empty or negative");
    rows += s.rows;
    const int64_t pages =
        (int64_t{s.first_position} + s.rows + kPagePositions - 1) / kPagePositions;
    require(s.first_page + pages <= static_cast<int64_t>(b.num_pages),
            "a segment reaches behind its block table");
  }
  require(rows == static_cast<int64_t>(b.rows), "the segments must cover all rows");
}

std::vector<uint8_t> Player::forward(const Batch& batch) {
  check(batch);
  batch_ = batch;
  flags_.assign(batch.rows, 0);
  begun_ops_.store(0, std::memory_order_relaxed);
  segment_of_row_.clear();
  for (size_t i = 0; i < batch.num_segments; ++i)
    segment_of_row_.insert(segment_of_row_.end(), static_cast<size_t>(batch.segments[i].rows), i);
  tile_group_ = 0;
  for (const Op& op : program_.ops()) {
    if (op.kind != OpKind::kAttention || op.groups == tile_group_) continue;
    tile_group_ = op.groups;  // one group size per model
    plan_attention(op.causal);
  }
  for (Section& section : sections_) section.next.store(0, std::memory_order_relaxed);
  for (ThreadState& state : threads_) state.section = 0;
  pool_.run([this](int thread) { play(thread); });
  return flags_;
}

void Player::plan_attention(bool causal) {
  tiles_.clear();
  most_spans_ = 0;
  const int tile_rows = std::max(1, kTilePairs / tile_group_);
  size_t row = 0;
  for (size_t s = 0; s < batch_.num_segments; ++s) {
    const Segment& segment = batch_.segments[s];
    for (int done = 0; done < segment.rows; done += tile_rows) {
      const int rows = std::min(tile_rows, segment.rows - done);
      const int64_t position = int64_t{segment.first_position} + done;
      const int64_t seen = causal ? 0 : int64_t{segment.first_position} + segment.rows;
      const int64_t spans = ((causal ? position + rows : seen) - 1) / kSpan + 1;
      tiles_.push_back({s, row, rows, position, spans, seen});
      most_spans_ = std::max(most_spans_, spans);
      row += static_cast<size_t>(rows);
    }
  }
}

void Player::play(int thread) {
  ThreadState& self = threads_[static_cast<size_t>(thread)];
  for (const Op& op : program_.ops()) {
    if (thread == 0) {
      ++self.calls[static_cast<size_t>(op.kind)];
      begun_ops_.fetch_add(1, std::memory_order_relaxed);
    }
    switch (op.kind) {
      case OpKind::kEmbed:
        embed(op, self);
        break;
      case OpKind::kRmsNorm:
        rms_norm(op, self);
        break;
      case OpKind::kLinear:
        linear(op, self);
        break;
      case OpKind::kSwigluLinear:
        swiglu_linear(op, self);
        break;
      case OpKind::kRope:
        rope(op, self);
        break;
      case OpKind::kAttention:
        attention(op, self);
        break;
      case OpKind::kSelect:
        select(op, self);
        break;
      case OpKind::kVectors:
        vectors(op, self);
        break;
      case OpKind::kAddVectors:
        add_vectors(op, self);
        break;
      case OpKind::kLayerNorm:
        layer_norm(op, self);
        break;
      case OpKind::kGelu:
        gelu(op, self);
        break;
      case OpKind::kJoin:
        join(op, self);
        break;
      case OpKind::kMoe:
        moe(op, self);
        break;
    }
  }
}

const float* Player::logits(size_t r) const {
  return row(program_.logits_buffer(), static_cast<int64_t>(r));
}
const float* Player::hidden() const {
  if (program_.hidden_buffer() < 0)
    throw std::invalid_argument("the program declares no hidden rows");
  return row(program_.hidden_buffer(), 0);
}
int64_t Player::logits_width() const { return width(program_.logits_buffer()); }
const float* Player::values(int buffer) const {
  const auto& buffers = program_.buffers();
  if (buffer < 0 || static_cast<size_t>(buffer) >= buffers.size() ||
      buffers[static_cast<size_t>(buffer)].space != Space::kLogits)
    throw std::invalid_argument("values: no buffer of marked rows of this program");
  return row(buffer, 0);
}

template <class Fn>
void Player::for_each_row(size_t n, Fn fn) {
  std::atomic<size_t> next{0};
  const auto work = [&](int thread) {
    SamplerScratch& scratch = threads_[static_cast<size_t>(thread)].sampler;
    for (size_t i; (i = next.fetch_add(1)) < n;) fn(i, scratch);
  };
  if (n == 1) {  // not worth waking anybody
    const FpGuard guard;
    work(0);
  } else {
    pool_.run(work);
  }
}

std::vector<int32_t> Player::sample(const std::vector<SamplingParams>& params, int32_t vocab_size) {
  if (params.size() != batch_.num_logit_rows)
    throw std::invalid_argument("sample: one entry per marked row of the last forward");
  if (vocab_size < 1 || vocab_size > logits_width())
    throw std::invalid_argument("sample: vocab_size is out of range");
  std::vector<int32_t> ids(params.size());
  for_each_row(params.size(), [&](size_t r, SamplerScratch& scratch) {
    ids[r] = sample_row(logits(r), vocab_size, params[r], kernels_, scratch);
  });
  return ids;
}

Player::Logprobs Player::logprobs(const int32_t* rows, const int32_t* ids, size_t n, int32_t top,
                                  int32_t vocab_size) {
  if (vocab_size < 1 || vocab_size > logits_width())
    throw std::invalid_argument("logprobs: vocab_size is out of range");
  if (top < 0 || top > vocab_size) throw std::invalid_argument("logprobs: top is out of range");
  for (size_t i = 0; i < n; ++i)
    if (rows[i] < 0 || static_cast<size_t>(rows[i]) >= batch_.num_logit_rows)
      throw std::invalid_argument("logprobs: rows must name marked rows of the last forward");
  const size_t width = static_cast<size_t>(top);
  Logprobs out{std::vector<float>(n), std::vector<int32_t>(n * width),
               std::vector<float>(n * width)};
  for_each_row(n, [&](size_t i, SamplerScratch& scratch) {
    out.chosen[i] =
        row_logprobs(logits(static_cast<size_t>(rows[i])), vocab_size, ids[i], top, kernels_,
                     scratch, out.top_ids.data() + i * width, out.top_logprobs.data() + i * width);
  });
  return out;
}

std::map<std::string, uint64_t> Player::counters() const {
  static constexpr const char* kOps[kNumOpCounters] = {
      "embed",     "rms_norm",          "linear",  "swiglu_linear", "rope",
      "attention", "select_logit_rows", "vectors", "add_vectors",   "layer_norm",
      "gelu",      "join_rows",         "moe"};
  static constexpr const char* kTiles[kNumTileSizes] = {"m8", "m4", "m2", "m1"};
  std::map<std::string, uint64_t> out;
  for (const ThreadState& state : threads_) {
    for (size_t i = 0; i < kNumOpCounters; ++i)
      if (state.calls[i] != 0) out[kOps[i]] += state.calls[i];
    if (state.split_attentions != 0) out["attention.heads_apart"] += state.split_attentions;
    for (int type = 0; type < kNumWeightTypes; ++type)
      for (size_t tile = 0; tile < kNumTileSizes; ++tile)
        if (const uint64_t n = state.linear_calls[static_cast<size_t>(type)][tile]; n != 0)
          out[std::string("linear.") + type_at(type).name + "." + kTiles[tile]] += n;
  }
  return out;
}

}  // namespace draftproof
