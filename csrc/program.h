// A program: operations over named row buffers, recorded once per model and checked while recorded,
// so that the player can trust every index and width. Knows shapes; computes nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kv_cache.h"
#include "weights.h"

namespace draftproof {

inline constexpr int kMostExpertsUsed = 64;  // per row

enum class Space { kRows, kLogits };  // one row per batch row, or one per marked row

struct Buffer {
  std::string name;
  int64_t width;
  Space space;
};

enum class OpKind {
  kEmbed,
  kRmsNorm,
  kLinear,
  kSwigluLinear,
  kRope,
  kAttention,
  kSelect,
  kVectors,
  kAddVectors,
  kLayerNorm,
  kGelu,
  kJoin,
  kMoe
};

struct Op {
  OpKind kind;
  std::vector<int> outs;     // buffers written (kRope: rotated in place)
  int x = -1;                // buffer read
  std::vector<int> weights;  // linear weights; kRmsNorm: one vector; kMoe: gate, up, down experts
  std::vector<int> biases;   // per out: a vector or -1
  int residual = -1;         // buffer added to the one output
  float eps = 0;
  int groups = 1;               // kRmsNorm: groups of equal length in a row
  int head_dim = 0;             // kRope, kAttention
  int layer = 0;                // kAttention
  bool causal = true;           // kAttention
  int64_t column = 0;           // kVectors, kAddVectors: first column of a row's vector
  bool exact = false;           // kGelu: by erf instead of tanh
  int k = -1, v = -1;           // kAttention: buffers; x is the queries
  std::vector<uint64_t> turns;  // kRope, per frequency
  double magnitude = 1;         // kRope: factor of cos and sin
  std::vector<uint8_t> axes;    // kRope, per frequency
  int router = -1;              // kMoe: buffer, one logit per expert
  int used = 0;                 // kMoe: experts per row
  bool renormalise = false;     // kMoe: divide by the sum of the chosen probabilities
};

// Every recording function throws std::invalid_argument when a buffer, weight or width doesn't fit.
class Program {
 public:
  // Both must outlive the program (the bindings see to it).
  Program(const Weights& weights, const KvCache& kv) : weights_(weights), kv_(kv) {}

  int buffer(const std::string& name, int64_t width, Space space);
  void embed(int out, int table);
  void vectors(int out, int64_t column);
  void add_vectors(int x, int64_t column);
  void layer_norm(int out, int x, int weight, int bias, float eps);
  void gelu(int x, bool exact);
  void rms_norm(int out, int x, int weight, float eps);
  void linear(std::vector<int> outs, int x, std::vector<int> weights, std::vector<int> biases,
              int residual);
  void swiglu_linear(int out, int x, int gate, int up);
  void rope(std::vector<int> xs, int head_dim, std::vector<uint64_t> turns,
            std::vector<uint8_t> axes, double magnitude = 1);
  void attention(int out, int q, int k, int v, int layer, bool causal);
  void moe(int out, int x, int router, int gate, int up, int down, int used, bool renormalise,
           int residual);
  void select_logit_rows(int out, int x);
  void join_rows(int out, int x);
  void logits(int x);
  void hidden(int x);

  const Weights& weights() const { return weights_; }
  const KvCache& kv() const { return kv_; }
  const std::vector<Buffer>& buffers() const { return buffers_; }
  const std::vector<Op>& ops() const { return ops_; }
  int logits_buffer() const { return logits_; }           // -1 until declared
  int hidden_buffer() const { return hidden_; }           // likewise
  int64_t vocab() const { return vocab_; }                // rows of the embedding table, 0 = none
  int64_t vector_width() const { return vector_width_; }  // of the rows given as vectors, 0 = none

 private:
  const Buffer& checked(int buffer, const char* role) const;
  void require(bool ok, const std::string& what) const;
  Op& add(OpKind kind);

  const Weights& weights_;
  const KvCache& kv_;
  std::vector<Buffer> buffers_;
  std::vector<Op> ops_;
  int logits_ = -1;
  int hidden_ = -1;
  int64_t vocab_ = 0;
  int64_t vector_width_ = 0;
};

}  // namespace draftproof
