// Plays a program for a batch of rows: all threads walk the operations together and meet at
// barriers. Owns row buffers, scratch and threads. Policy (what is in a batch) is the caller's.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dispatch.h"
#include "logprobs.h"
#include "program.h"
#include "sampler.h"
#include "thread_pool.h"

namespace draftproof {

// Rows of one sequence that stand one behind the other in the batch.
struct Segment {
  int32_t rows;
  int32_t first_position;  // KV index of the first row
  int32_t first_page;      // where its block table starts in Batch::block_tables
};

struct Batch {
  const int32_t* tokens;  // [rows]; -1 - i: row i of vectors
  size_t rows;
  const int32_t* positions;  // [rows, 3] rotary positions
  const Segment* segments;   // [num_segments], covering all rows in order
  size_t num_segments;
  const int32_t* block_tables;  // [num_pages] page numbers of all segments
  size_t num_pages;
  const int32_t* logit_rows;  // [num_logit_rows] ascending
  size_t num_logit_rows;
  const float* vectors;  // [num_vectors, vector_width of the program] or nullptr
  size_t num_vectors;
};

inline constexpr size_t kNumOpCounters = 13;
inline constexpr int kRowBlock = 32;  // rows of activations that stay in cache beside a few panels
inline constexpr int64_t kSwigluStep = 64;  // outputs: whole panels of every type
inline constexpr int64_t kSwigluSteps = 8;  // of gate, then of up, one after the other
inline constexpr int64_t kSwigluStride = kSwigluStep * kSwigluSteps + 16;
inline constexpr int64_t kQuantizePart = 2048;  // inputs that a thread quantizes at once
inline constexpr int64_t kTileBytes =
    64 * 1024;  // of weights: the least that a thread takes at once

inline int64_t least_panels(const Linear& w) {
  return std::max<int64_t>(1,
                           kTileBytes / static_cast<int64_t>(panel_bytes(*w.info, w.in_features)));
}
inline int64_t swiglu_steps_of(const Linear& gate) {
  return (gate.out_features + kSwigluStep - 1) / kSwigluStep;
}
inline int64_t least_swiglu_steps(const Linear& gate) {
  return std::max<int64_t>(1, least_panels(gate) * gate.info->panel_outputs / kSwigluStep);
}
inline int64_t quantize_parts(int64_t n) { return (n + kQuantizePart - 1) / kQuantizePart; }

class Player {
 public:
  // The program must outlive the player. Throws std::invalid_argument.
  Player(const Program& program, int max_rows, int max_logit_rows, int threads,
         const std::string& isa);

  // Returns one flag per row: 1 where a value was not finite. Throws std::invalid_argument for a
  // batch that doesn't fit; nothing has been computed then.
  std::vector<uint8_t> forward(const Batch& batch);

  const float* logits(size_t row) const;
  size_t num_logit_rows() const { return batch_.num_logit_rows; }
  int64_t logits_width() const;
  // The rows of the buffer that the program declares as hidden. std::invalid_argument: it has none.
  const float* hidden() const;
  int64_t hidden_width() const { return width(program_.hidden_buffer()); }
  size_t hidden_stride() const { return strides_[static_cast<size_t>(program_.hidden_buffer())]; }
  size_t logits_stride() const { return strides_[static_cast<size_t>(program_.logits_buffer())]; }
  int64_t vector_width() const { return program_.vector_width(); }
  // A buffer of marked rows as the last forward left it. Throws std::invalid_argument.
  const float* values(int buffer) const;
  int64_t values_width(int buffer) const { return width(buffer); }
  size_t values_stride(int buffer) const { return strides_[static_cast<size_t>(buffer)]; }

  // One token per marked row of the last forward; -1 where none can be chosen. What the parameters
  // point to has to be as long as sampler.h says.
  std::vector<int32_t> sample(const std::vector<SamplingParams>& params, int32_t vocab_size);

  struct Logprobs {
    std::vector<float> chosen;        // [n]
    std::vector<int32_t> top_ids;     // [n, top]
    std::vector<float> top_logprobs;  // [n, top]
  };
  // Logprobs of ids[i] in marked row rows[i] of the last forward, and the `top` likeliest there.
  Logprobs logprobs(const int32_t* rows, const int32_t* ids, size_t n, int32_t top,
                    int32_t vocab_size);

  // Operations of the running forward that have begun. For any thread.
  size_t begun_ops() const { return begun_ops_.load(std::memory_order_relaxed); }
  size_t num_ops() const { return program_.ops().size(); }
  std::map<std::string, uint64_t> counters() const;
  const char* isa() const { return kernels_.name; }
  int threads() const { return pool_.size(); }

 private:
  struct alignas(64) Section {  // of a program in which threads share out tiles
    std::atomic<int64_t> next{0};
  };
  struct AttentionTile {  // consecutive rows of one segment
    size_t segment;
    size_t first_row;
    int rows;
    int64_t first_position;
    int64_t spans;  // that the tile's last row sees
    int64_t seen;   // positions that every row sees; 0: those up to its own
    bool sees(int row, int64_t span) const {
      return seen > 0 || first_position + row >= span * kSpan;
    }
  };
  struct QueryHeads {  // of one KV head: first .. first + count - 1
    int kv_head, first, count;
  };
  struct Forms {  // that weights need of their input
    bool floats = false, block32 = false, block256 = false;
    bool quantized() const { return block32 || block256; }
    void add(const Linear& w) {
      floats |= w.info->form == ActForm::kFloat;
      block32 |= w.info->form == ActForm::kBlock32;
      block256 |= w.info->form == ActForm::kBlock256;
    }
  };
  struct Activations {  // by ActForm: the first row, and bytes from row to row
    const uint8_t* forms[3];
    size_t strides[3];
  };
  struct ExpertRows {  // that chose one expert; slots are (row, choice) sorted by expert
    int32_t expert, first_slot, rows;
  };
  struct Routing {  // the same in every thread
    std::vector<ExpertRows> groups;
    std::vector<int32_t> slot_of;  // [rows * used]
    std::vector<int32_t> row_of;   // [slots]
    std::vector<int32_t> starts;   // scratch, per expert
  };
  struct MoeMemory {
    size_t slots = 0;
    std::vector<int32_t> chosen;       // [rows * used] experts, likeliest first
    std::vector<float> probabilities;  // [rows * used]
    float *x = nullptr, *hidden = nullptr, *parts = nullptr;  // [slots, their stride]
    uint8_t *act32 = nullptr, *act256 = nullptr;              // [slots, their stride]
    size_t x_stride = 0, hidden_stride = 0, parts_stride = 0, act32_stride = 0, act256_stride = 0;
  };
  struct ThreadState {
    std::vector<float> scores, partial, state, gate, up;
    Routing routing;
    SamplerScratch sampler;
    std::array<std::array<uint64_t, kNumTileSizes>, kNumWeightTypes> linear_calls{};
    std::array<uint64_t, kNumOpCounters> calls{};
    uint64_t split_attentions = 0;  // attention whose query heads were shared out (thread 0 counts)
    size_t section = 0;             // the next one of this forward
  };

  // Calls fn(i, scratch) for 0 .. n-1 on all threads.
  template <class Fn>
  void for_each_row(size_t n, Fn fn);

  void lay_out_memory();
  void check(const Batch& batch) const;
  void plan_attention(bool causal);
  void play(int thread);

  // One operation each; all threads call it together.
  void embed(const Op& op, ThreadState& self);
  void vectors(const Op& op, ThreadState& self);
  void add_vectors(const Op& op, ThreadState& self);
  void layer_norm(const Op& op, ThreadState& self);
  void gelu(const Op& op, ThreadState& self);
  void join(const Op& op, ThreadState& self);
  void rms_norm(const Op& op, ThreadState& self);
  void linear(const Op& op, ThreadState& self);
  void swiglu_linear(const Op& op, ThreadState& self);
  void rope(const Op& op, ThreadState& self);
  void attention(const Op& op, ThreadState& self);
  void select(const Op& op, ThreadState& self);
  void moe(const Op& op, ThreadState& self);

  void route(const Op& op, int64_t row);
  void group_by_expert(const Op& op, Routing& routing) const;
  Activations gather(const Op& op, Forms forms, ThreadState& self);
  bool quantize_part(Forms forms, const float* x, int64_t n, int64_t part, uint8_t* act32,
                     uint8_t* act256) const;
  void swiglu_steps(const Linear& gate, const Linear& up, const Activations& x, int64_t begin,
                    int64_t end, int64_t first, int64_t last, float* out, size_t out_stride,
                    ThreadState& self);
  void quantize(const Op& op, ThreadState& self);
  void attend_tile(const Op& op, ThreadState& self, const AttentionTile& tile,
                   const QueryHeads& heads);
  SpanArgs span_args(const Op& op, ThreadState& self, const AttentionTile& tile,
                     const QueryHeads& heads) const;
  void finish_tile(const Op& op, const AttentionTile& tile, const QueryHeads& heads,
                   const float* states);

  // Calls fn(first, last) for tiles of 0 .. total-1 until none is left, then waits for the others.
  // Tiles start large and shrink to `least`: long runs of weights stream best, short ones at the
  // end let threads finish together.
  template <class Fn>
  void in_tiles(ThreadState& self, int64_t total, int64_t least, Fn fn) {
    std::atomic<int64_t>& next = sections_[self.section++].next;
    const int64_t shares = 2 * pool_.size();
    int64_t first = next.load(std::memory_order_relaxed);
    while (first < total) {
      const int64_t last = std::min(total, first + std::max(least, (total - first) / shares));
      if (next.compare_exchange_weak(first, last, std::memory_order_relaxed)) {
        fn(first, last);
        first = next.load(std::memory_order_relaxed);
      }
    }
    pool_.barrier();
  }

  int64_t rows_of(int buffer) const;
  const float* vector_of(int64_t r) const;  // of a row that is given as one
  float* row(int buffer, int64_t r) const {
    return base_[static_cast<size_t>(buffer)] +
           static_cast<size_t>(r) * strides_[static_cast<size_t>(buffer)];
  }
  int64_t width(int buffer) const { return program_.buffers()[static_cast<size_t>(buffer)].width; }
  Activations activations(int buffer) const;
  static PanelArgs panel_args(const Linear& w, const Activations& x, int64_t panel,
                              int64_t first_row, int rows, ThreadState& self);
  void flag(int buffer, int64_t row);

  const Program
      program_;  // a copy: what is recorded later can't reach past the memory laid out here
  const Kernels& kernels_;
  const size_t max_rows_, max_logit_rows_;
  ThreadPool pool_;
  std::vector<size_t> strides_;  // floats per row, per buffer
  std::vector<float*> base_;     // per buffer
  std::unique_ptr<Arena> memory_;
  uint8_t *act32_ = nullptr, *act256_ = nullptr;  // quantized rows of the operation's input
  size_t act32_stride_ = 0, act256_stride_ = 0;
  MoeMemory moe_;
  float* span_parts_ = nullptr;  // partial attention results when spans are shared out
  size_t span_parts_floats_ = 0;
  std::deque<ThreadState> threads_;
  std::deque<Section> sections_;

  Batch batch_{};
  std::vector<size_t> segment_of_row_;
  std::vector<AttentionTile> tiles_;  // of the group size tile_group_
  int tile_group_ = 0;
  int64_t most_spans_ = 0;
  std::vector<uint8_t> flags_;
  std::atomic<size_t> begun_ops_{0};
};

}  // namespace draftproof
