#include "weights.h"

#include <cmath>
#include <new>
#include <stdexcept>

namespace draftproof {
namespace {

constexpr size_t kAlignment = 256;
constexpr int64_t kMostExperts = 1024;
constexpr int64_t kMostRows = int64_t{1} << 31;
size_t aligned(size_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; }

const TypeInfo& checked_type(int32_t ggml_type, int64_t out_features, int64_t in_features) {
  const TypeInfo* t = type_info(ggml_type);
  if (t == nullptr)
    throw std::invalid_argument("weight type " + std::to_string(ggml_type) + " can't be packed");
  if (out_features < 1 || in_features < 1 || out_features >= kMostRows || in_features >= kMostRows)
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

size_t Weights::packed_size(int32_t ggml_type, int64_t out_features, int64_t in_features,
                            int64_t experts) {
  const TypeInfo& t = checked_type(ggml_type, out_features, in_features);
  if (experts < 1 || experts > kMostExperts || experts * out_features >= kMostRows)
    throw std::invalid_argument("a layer needs 1 .. " + std::to_string(kMostExperts) +
                                " experts, together less than 2^31 rows");
  return aligned(static_cast<size_t>(experts * num_panels(t, out_features)) *
                 panel_bytes(t, in_features));
}

// All panels of all experts, shared out among the threads.
const uint8_t* Weights::pack(const std::string& name, int32_t ggml_type, const uint8_t* data,
                             size_t bytes, int64_t experts, int64_t out_features,
                             int64_t in_features) {
  const size_t size = packed_size(ggml_type, out_features, in_features, experts);
  const TypeInfo& t = *type_info(ggml_type);
  const size_t matrix = static_cast<size_t>(out_features) *
                        static_cast<size_t>(in_features / t.block_inputs) * t.source_block_bytes;
  if (bytes != static_cast<size_t>(experts) * matrix)
    throw std::invalid_argument("tensor '" + name + "' has " + std::to_string(bytes) +
                                " bytes, its shape needs " +
                                std::to_string(static_cast<size_t>(experts) * matrix));
  if (size > arena_.size() - used_) throw std::bad_alloc();
  uint8_t* packed = arena_.data() + used_;
  const int64_t panels = num_panels(t, out_features);
  const size_t packed_matrix = static_cast<size_t>(panels) * panel_bytes(t, in_features);
  const int64_t tile = std::max<int64_t>(1, experts * panels / (8 * pool_.size()));
  std::atomic<int64_t> next{0}, bad_row{-1};
  pool_.run([&](int) {
    for (;;) {
      int64_t first = next.fetch_add(tile);
      if (first >= experts * panels) return;
      const int64_t last = std::min(experts * panels, first + tile);
      while (first < last) {  // the part of the tile that lies in one expert
        const int64_t expert = first / panels, begin = first % panels;
        const int64_t end = std::min(panels, begin + last - first);
        const int64_t bad =
            pack_panels(static_cast<WeightType>(ggml_type),
                        data + static_cast<size_t>(expert) * matrix, out_features, in_features,
                        packed + static_cast<size_t>(expert) * packed_matrix, begin, end);
        if (bad >= 0) bad_row.store(expert * out_features + bad);
        first += end - begin;
      }
    }
  });
  if (bad_row.load() >= 0)
    throw std::invalid_argument("tensor '" + name + "' has a value that is not finite near row " +
                                std::to_string(bad_row.load()));
  used_ += size;
  return packed;
}

int Weights::add_linear(const std::string& name, int32_t ggml_type, const uint8_t* data,
                        size_t bytes, int64_t out_features, int64_t in_features) {
  const uint8_t* packed = pack(name, ggml_type, data, bytes, 1, out_features, in_features);
  linears_.push_back({name, static_cast<WeightType>(ggml_type), type_info(ggml_type), out_features,
                      in_features, packed});
  entries_.push_back({Kind::kLinear, linears_.size() - 1});
  return static_cast<int>(entries_.size()) - 1;
}

int Weights::add_experts(const std::string& name, int32_t ggml_type, const uint8_t* data,
                         size_t bytes, int64_t experts, int64_t out_features, int64_t in_features) {
  const uint8_t* packed = pack(name, ggml_type, data, bytes, experts, out_features, in_features);
  const TypeInfo* t = type_info(ggml_type);
  const size_t matrix =
      static_cast<size_t>(num_panels(*t, out_features)) * panel_bytes(*t, in_features);
  std::vector<Linear>& all = experts_.emplace_back();
  for (int64_t e = 0; e < experts; ++e)
    all.push_back({name, static_cast<WeightType>(ggml_type), t, out_features, in_features,
                   packed + static_cast<size_t>(e) * matrix});
  entries_.push_back({Kind::kExperts, experts_.size() - 1});
  return static_cast<int>(entries_.size()) - 1;
}

int Weights::add_vector(const std::string& name, const float* data, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    if (!std::isfinite(data[i]))
      throw std::invalid_argument("tensor '" + name + "' has a value that is not finite at index " +
                                  std::to_string(i));
  vectors_.emplace_back(data, data + n);
  entries_.push_back({Kind::kVector, vectors_.size() - 1});
  return static_cast<int>(entries_.size()) - 1;
}

size_t Weights::index_of(int id, Kind kind, const char* what) const {
  if (id < 0 || static_cast<size_t>(id) >= entries_.size() ||
      entries_[static_cast<size_t>(id)].kind != kind)
    throw std::invalid_argument("weight " + std::to_string(id) + " is no " + what);
  return entries_[static_cast<size_t>(id)].index;
}

const Linear& Weights::linear(int id) const {
  return linears_[index_of(id, Kind::kLinear, "linear weight")];
}

const std::vector<Linear>& Weights::experts(int id) const {
  return experts_[index_of(id, Kind::kExperts, "weight of experts")];
}

const std::vector<float>& Weights::vector(int id) const {
  return vectors_[index_of(id, Kind::kVector, "vector")];
}

}  // namespace draftproof
