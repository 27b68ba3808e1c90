#include "weights.h"

#include <cmath>
#include <new>
#include <stdexcept>

namespace draftproof {
namespace {

constexpr size_t kAlignment = 256;
size_t aligned(size_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; }

const TypeInfo& checked_type(int32_t ggml_type, int64_t out_features, int64_t in_features) {
  const TypeInfo* t = type_info(ggml_type);
  if (t == nullptr)
    throw std::invalid_argument("weight type " + std::to_string(ggml_type) + " can't be packed");
  constexpr int64_t kMost = int64_t{1} << 31;
  if (out_features < 1 || in_features < 1 || out_features >= kMost || in_features >= kMost)
    throw std::invalid_argument("a linear weight needs 1 .. 2^31 - 1 rows and columns");
  if (in_features % t->block_inputs != 0)
    throw std::invalid_argument("rows of " + std::to_string(in_features) +
                                " are no multiple of the block " + std::to_string(t->block_inputs) +
                                " of " + t->name);
  return *t;
}

}  // namespace

Weights::Weights(size_t arena_bytes, int threads)
    : arena_(arena_bytes), pool_(checked_threads(threads)) {}

size_t Weights::packed_size(int32_t ggml_type, int64_t out_features, int64_t in_features) {
  const TypeInfo& t = checked_type(ggml_type, out_features, in_features);
  return aligned(static_cast<size_t>(num_panels(t, out_features)) * panel_bytes(t, in_features));
}

int Weights::add_linear(const std::string& name, int32_t ggml_type, const uint8_t* data,
                        size_t bytes, int64_t out_features, int64_t in_features) {
  const TypeInfo& t = checked_type(ggml_type, out_features, in_features);
  const size_t expected = static_cast<size_t>(out_features) *
                          static_cast<size_t>(in_features / t.block_inputs) * t.source_block_bytes;
  if (bytes != expected)
    throw std::invalid_argument("tensor '" + name + "' has " + std::to_string(bytes) +
                                " bytes, its shape needs " + std::to_string(expected));
  const size_t size = packed_size(ggml_type, out_features, in_features);
  if (size > arena_.size() - used_) throw std::bad_alloc();
  uint8_t* packed = arena_.data() + used_;
  const int64_t panels = num_panels(t, out_features);
  const int64_t tile = std::max<int64_t>(1, panels / (8 * pool_.size()));
  std::atomic<int64_t> next{0}, bad_row{-1};
  pool_.run([&](int) {
    for (;;) {
      const int64_t first = next.fetch_add(tile);
      if (first >= panels) return;
      const int64_t bad = pack_panels(static_cast<WeightType>(ggml_type), data, out_features,
                                      in_features, packed, first, std::min(panels, first + tile));
      if (bad >= 0) bad_row.store(bad);
    }
  });
  if (bad_row.load() >= 0)
    throw std::invalid_argument("tensor '" + name + "' has a value that is not finite near row " +
                                std::to_string(bad_row.load()));
  used_ += size;
  linears_.push_back(
      {name, static_cast<WeightType>(ggml_type), &t, out_features, in_features, packed});
  entries_.push_back({true, linears_.size() - 1});
  return static_cast<int>(entries_.size()) - 1;
}

int Weights::add_vector(const std::string& name, const float* data, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    if (!std::isfinite(data[i]))
      throw std::invalid_argument("tensor '" + name + "' has a value that is not finite at index " +
                                  std::to_string(i));
  vectors_.emplace_back(data, data + n);
  entries_.push_back({false, vectors_.size() - 1});
  return static_cast<int>(entries_.size()) - 1;
}

const Linear& Weights::linear(int id) const {
  if (id < 0 || static_cast<size_t>(id) >= entries_.size() ||
      !entries_[static_cast<size_t>(id)].is_linear)
    throw std::invalid_argument("weight " + std::to_string(id) + " is no linear weight");
  return linears_[entries_[static_cast<size_t>(id)].index];
}

const std::vector<float>& Weights::vector(int id) const {
  if (id < 0 || static_cast<size_t>(id) >= entries_.size() ||
      entries_[static_cast<size_t>(id)].is_linear)
    throw std::invalid_argument("weight " + std::to_string(id) + " is no vector");
  return vectors_[entries_[static_cast<size_t>(id)].index];
}

}  // namespace draftproof
