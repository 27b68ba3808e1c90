// The packed tensors of a model in one arena. Owns memory and names; knows no operation.
#pragma once

#include <string>
#include <vector>

#include "arena.h"
#include "packed.h"
#include "thread_pool.h"

namespace draftproof {

struct Linear {
  std::string name;
  WeightType type;
  const TypeInfo* info;
  int64_t out_features, in_features;
  const uint8_t* packed;
};

class Weights {
 public:
  Weights(size_t arena_bytes, int threads);

  // Bytes of the arena a linear weight takes, or that many experts together. Throws
  // std::invalid_argument: unsupported type, sizes.
  static size_t packed_size(int32_t ggml_type, int64_t out_features, int64_t in_features,
                            int64_t experts = 1);

  // Packs a tensor given in GGUF blocks, [out_features, in_features]; returns its id. Throws
  // std::invalid_argument (wrong size, a value that isn't finite: names tensor and row) or
  // std::bad_alloc (arena full).
  int add_linear(const std::string& name, int32_t ggml_type, const uint8_t* data, size_t bytes,
                 int64_t out_features, int64_t in_features);
  // The same for `experts` matrices that lie one behind the other; each gets panels of its own.
  int add_experts(const std::string& name, int32_t ggml_type, const uint8_t* data, size_t bytes,
                  int64_t experts, int64_t out_features, int64_t in_features);
  // A norm weight or a bias; ids are shared with the linear weights.
  int add_vector(const std::string& name, const float* data, int64_t n);

  const Linear& linear(int id) const;                // throws std::invalid_argument
  const std::vector<Linear>& experts(int id) const;  // throws std::invalid_argument
  const std::vector<float>& vector(int id) const;    // throws std::invalid_argument
  size_t used() const { return used_; }

 private:
  enum class Kind { kLinear, kExperts, kVector };
  struct Entry {
    Kind kind;
    size_t index;
  };
  size_t index_of(int id, Kind kind, const char* what) const;
  const uint8_t* pack(const std::string& name, int32_t ggml_type, const uint8_t* data, size_t bytes,
                      int64_t experts, int64_t out_features, int64_t in_features);

  Arena arena_;
  size_t used_ = 0;
  ThreadPool pool_;
  std::vector<Entry> entries_;
  std::vector<Linear> linears_;
  std::vector<std::vector<Linear>> experts_;
  std::vector<std::vector<float>> vectors_;
};

}  // namespace draftproof
