#include "program.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace draftproof {

void Program::require(bool ok, const std::string& what) const {
  if (!ok)
    throw std::invalid_argument("program, operation " + std::to_string(ops_.size()) + ": " + what);
}

const Buffer& Program::checked(int buffer, const char* role) const {
  require(buffer >= 0 && static_cast<size_t>(buffer) < buffers_.size(),
          std::string(role) + " is no buffer of this program");
  return buffers_[static_cast<size_t>(buffer)];
}

Op& Program::add(OpKind kind) {
  ops_.emplace_back();
  ops_.back().kind = kind;
  return ops_.back();
}

int Program::buffer(const std::string& name, int64_t width, Space space) {
  require(width >= 1 && width < (int64_t{1} << 28),
          "buffer '" + name + "' has an impossible width");
  buffers_.push_back({name, width, space});
  return static_cast<int>(buffers_.size()) - 1;
}

void Program::embed(int out, int table) {
  const Buffer& o = checked(out, "out");
  const Linear& t = weights_.linear(table);
  require(o.space == Space::kRows && o.width == t.in_features,
          "embed: out must be [rows, columns of the table]");
  require(vocab_ == 0, "embed: a program has one embedding");
  vocab_ = t.out_features;
  vector_width_ = std::max(vector_width_, o.width);
  Op& op = add(OpKind::kEmbed);
  op.outs = {out};
  op.weights = {table};
}

void Program::vectors(int out, int64_t column) {
  const Buffer& o = checked(out, "out");
  require(o.space == Space::kRows && column >= 0 && column < (int64_t{1} << 28),
          "vectors: out must be batch rows, the column 0 or more");
  vector_width_ = std::max(vector_width_, column + o.width);
  Op& op = add(OpKind::kVectors);
  op.outs = {out};
  op.column = column;
}

void Program::add_vectors(int x, int64_t column) {
  const Buffer& b = checked(x, "x");
  require(b.space == Space::kRows && column >= 0 && column < (int64_t{1} << 28),
          "add_vectors: x must be batch rows, the column 0 or more");
  vector_width_ = std::max(vector_width_, column + b.width);
  Op& op = add(OpKind::kAddVectors);
  op.outs = {x};
  op.column = column;
}

void Program::layer_norm(int out, int x, int weight, int bias, float eps) {
  const Buffer &o = checked(out, "out"), &in = checked(x, "x");
  require(o.width == in.width && o.space == in.space, "layer_norm: out and x must have one shape");
  require(static_cast<int64_t>(weights_.vector(weight).size()) == in.width &&
              static_cast<int64_t>(weights_.vector(bias).size()) == in.width,
          "layer_norm: weight and bias need the row's length");
  require(std::isfinite(eps) && eps > 0, "layer_norm: eps must be finite and above 0");
  Op& op = add(OpKind::kLayerNorm);
  op.outs = {out};
  op.x = x;
  op.weights = {weight};
  op.biases = {bias};
  op.eps = eps;
}

void Program::gelu(int x, bool exact) {
  checked(x, "x");
  Op& op = add(OpKind::kGelu);
  op.outs = {x};
  op.x = x;
  op.exact = exact;
}

void Program::rms_norm(int out, int x, int weight, float eps) {
  const Buffer &o = checked(out, "out"), &in = checked(x, "x");
  const auto n = static_cast<int64_t>(weights_.vector(weight).size());
  require(o.width == in.width && o.space == in.space, "rms_norm: out and x must have one shape");
  require(n >= 1 && in.width % n == 0, "rms_norm: the weight's length must divide the width");
  require(std::isfinite(eps) && eps > 0, "rms_norm: eps must be finite and above 0");
  Op& op = add(OpKind::kRmsNorm);
  op.outs = {out};
  op.x = x;
  op.weights = {weight};
  op.eps = eps;
  op.groups = static_cast<int>(in.width / n);
}

void Program::linear(std::vector<int> outs, int x, std::vector<int> weights,
                     std::vector<int> biases, int residual) {
  const Buffer& in = checked(x, "x");
  require(!outs.empty() && outs.size() == weights.size(), "linear: one out per weight");
  if (biases.empty()) biases.assign(outs.size(), -1);
  require(biases.size() == outs.size(), "linear: one bias (or -1) per weight");
  for (size_t i = 0; i < outs.size(); ++i) {
    const Buffer& o = checked(outs[i], "out");
    const Linear& w = weights_.linear(weights[i]);
    for (size_t j = 0; j < i; ++j)
      require(outs[j] != outs[i], "linear: two weights write one buffer");
    require(biases[i] >= -1 && residual >= -1, "linear: -1 means no bias or residual");
    require(o.space == in.space && o.width == w.out_features && in.width == w.in_features &&
                outs[i] != x,
            "linear: shapes of x, '" + w.name + "' and out don't fit");
    if (biases[i] >= 0)
      require(static_cast<int64_t>(weights_.vector(biases[i]).size()) == w.out_features,
              "linear: the bias of '" + w.name + "' has another length");
  }
  if (residual >= 0) {
    const Buffer& r = checked(residual, "residual");
    require(outs.size() == 1 && r.width == buffers_[static_cast<size_t>(outs[0])].width &&
                r.space == in.space && residual != x,
            "linear: the residual needs the shape of the one output");
  }
  Op& op = add(OpKind::kLinear);
  op.outs = std::move(outs);
  op.x = x;
  op.weights = std::move(weights);
  op.biases = std::move(biases);
  op.residual = residual;
}

void Program::swiglu_linear(int out, int x, int gate, int up) {
  const Buffer &o = checked(out, "out"), &in = checked(x, "x");
  const Linear &g = weights_.linear(gate), &u = weights_.linear(up);
  require(g.out_features == u.out_features && g.in_features == u.in_features &&
              o.width == g.out_features && in.width == g.in_features && o.space == in.space &&
              out != x,
          "swiglu_linear: shapes of x, '" + g.name + "', '" + u.name + "' and out don't fit");
  Op& op = add(OpKind::kSwigluLinear);
  op.outs = {out};
  op.x = x;
  op.weights = {gate, up};
}

void Program::rope(std::vector<int> xs, int head_dim, std::vector<uint64_t> turns,
                   std::vector<uint8_t> axes, double magnitude) {
  require(head_dim >= 2 && head_dim <= 1024 && head_dim % 2 == 0,
          "rope: head_dim must be even, 2 .. 1024");
  require(turns.size() == static_cast<size_t>(head_dim / 2) && axes.size() == turns.size(),
          "rope: one frequency and one axis per pair");
  for (uint8_t axis : axes) require(axis < 3, "rope: an axis is 0, 1 or 2");
  require(!xs.empty(), "rope: nothing to rotate");
  require(std::isfinite(magnitude) && magnitude > 0, "rope: magnitude must be finite and above 0");
  for (int x : xs) {
    const Buffer& b = checked(x, "x");
    require(b.space == Space::kRows && b.width % head_dim == 0,
            "rope: the width must be whole heads");
  }
  Op& op = add(OpKind::kRope);
  op.outs = std::move(xs);
  op.head_dim = head_dim;
  op.turns = std::move(turns);
  op.axes = std::move(axes);
  op.magnitude = magnitude;
}

void Program::attention(int out, int q, int k, int v, int layer, bool causal) {
  const Buffer &o = checked(out, "out"), &qb = checked(q, "q"), &kb = checked(k, "k"),
               &vb = checked(v, "v");
  const int64_t head_dim = kv_.head_dim(), kv_width = head_dim * kv_.kv_heads();
  require(layer >= 0 && layer < kv_.layers(), "attention: no such layer in the KV cache");
  require(o.space == Space::kRows && qb.space == Space::kRows && kb.space == Space::kRows &&
              vb.space == Space::kRows,
          "attention: works on batch rows");
  require(kb.width == kv_width && vb.width == kv_width,
          "attention: k and v need the KV cache's width");
  require(qb.width % kv_width == 0 && qb.width / kv_width <= 64 && o.width == qb.width,
          "attention: q and out need a multiple of the KV heads (at most 64 times)");
  for (const Op& other : ops_)
    require(other.kind != OpKind::kAttention ||
                (other.groups == qb.width / kv_width && other.causal == causal),
            "attention: one number of query heads per KV head in a program, causal or not");
  Op& op = add(OpKind::kAttention);
  op.outs = {out};
  op.x = q;
  op.k = k;
  op.v = v;
  op.layer = layer;
  op.causal = causal;
  op.head_dim = static_cast<int>(head_dim);
  op.groups = static_cast<int>(qb.width / kv_width);
}

void Program::moe(int out, int x, int router, int gate, int up, int down, int used,
                  bool renormalise, int residual) {
  const Buffer &o = checked(out, "out"), &in = checked(x, "x"), &r = checked(router, "router");
  const std::vector<Linear>&g = weights_.experts(gate), &u = weights_.experts(up),
        &d = weights_.experts(down);
  const auto experts = static_cast<int64_t>(g.size());
  require(u.size() == g.size() && d.size() == g.size() && r.width == experts,
          "moe: router, gate, up and down must have one number of experts");
  require(g[0].out_features == u[0].out_features && d[0].in_features == g[0].out_features &&
              in.width == g[0].in_features && in.width == u[0].in_features &&
              o.width == d[0].out_features,
          "moe: shapes of x, '" + g[0].name + "', '" + u[0].name + "', '" + d[0].name +
              "' and out don't fit");
  require(in.space == Space::kRows && o.space == Space::kRows && r.space == Space::kRows,
          "moe: works on batch rows");
  require(out != x && out != router && x != router, "moe: x, router and out must differ");
  require(used >= 1 && used <= experts && used <= kMostExpertsUsed,
          "moe: experts used must be 1 .. the number of experts, at most " +
              std::to_string(kMostExpertsUsed));
  require(residual >= -1, "moe: -1 means no residual");
  if (residual >= 0) {
    const Buffer& added = checked(residual, "residual");
    require(added.width == o.width && added.space == Space::kRows,
            "moe: the residual needs the shape of out");
  }
  Op& op = add(OpKind::kMoe);
  op.outs = {out};
  op.x = x;
  op.router = router;
  op.weights = {gate, up, down};
  op.used = used;
  op.renormalise = renormalise;
  op.residual = residual;
}

void Program::select_logit_rows(int out, int x) {
  const Buffer &o = checked(out, "out"), &in = checked(x, "x");
  require(o.space == Space::kLogits && in.space == Space::kRows && o.width == in.width,
          "select_logit_rows: from batch rows to marked rows of one width");
  Op& op = add(OpKind::kSelect);
  op.outs = {out};
  op.x = x;
}

void Program::join_rows(int out, int x) {
  const Buffer &o = checked(out, "out"), &in = checked(x, "x");
  require(o.space == Space::kLogits && in.space == Space::kRows && o.width % in.width == 0,
          "join_rows: from batch rows to marked rows of a multiple of the width");
  Op& op = add(OpKind::kJoin);
  op.outs = {out};
  op.x = x;
}

void Program::hidden(int x) {
  require(checked(x, "x").space == Space::kLogits, "hidden: must be a buffer of marked rows");
  hidden_ = x;
}

void Program::logits(int x) {
  require(checked(x, "x").space == Space::kLogits, "logits: must be a buffer of marked rows");
  logits_ = x;
}

}  // namespace draftproof
