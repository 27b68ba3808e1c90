// The cases of the kernel test, one file per group; each compares every row of the dispatch table
// with the scalar row, one activation row at a time.
#pragma once

#include <bit>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

#include "dispatch.h"
#include "report.h"
#include "tested_kernels.h"

namespace draftproof::test {

void test_linear(Report& report);
void test_rows(Report& report);       // quantize, norm, rope, swiglu, exp, store_kv, finish
void test_attention(Report& report);  // attend_span, combine_span
void test_rope_table(Report& report);

// Bytes on a cache line with nothing behind them, so that a sanitizer sees the first byte too far.
class Bytes {
 public:
  explicit Bytes(size_t n, uint8_t fill = 0)
      : size_(n), data_(static_cast<uint8_t*>(::operator new(n, std::align_val_t{64}))) {
    std::memset(data_, fill, n);
  }
  ~Bytes() { ::operator delete(data_, std::align_val_t{64}); }
  Bytes(Bytes&& other) noexcept : size_(other.size_), data_(std::exchange(other.data_, nullptr)) {}
  Bytes& operator=(Bytes&&) = delete;
  uint8_t* data() { return data_; }
  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  size_t size_;
  uint8_t* data_;
};

// Kernel results are compared as words, so that -0 and NaN count. Memory that a kernel must not
// touch holds kUntouched.
using Words = std::vector<uint32_t>;
inline constexpr uint32_t kUntouched = 0xdeadbeef;

inline Words words_of(const std::vector<float>& x) {
  Words out(x.size());
  std::memcpy(out.data(), x.data(), x.size() * sizeof(float));
  return out;
}
inline std::vector<float> untouched(size_t n) {
  return std::vector<float>(n, std::bit_cast<float>(kUntouched));
}

// n values that a kernel may meet: typical ones, and by `kind` (0 .. 7) zeros, denormals, equal
// magnitudes, outliers.
inline std::vector<float> activations(Random& random, size_t n, int kind) {
  std::vector<float> x(n);
  for (float& v : x) {
    switch (kind % 8) {
      case 4:
        v = random.coin() ? 0.0f : -0.0f;
        break;
      case 5:
        v = random.uniform(random.coin() ? 0x1p-70f : 0x1p-130f);
        break;
      case 6:
        v = random.coin() ? 3.0f : -3.0f;
        break;
      case 7:
        v = random.below(29) == 0 ? random.uniform(0x1p40f) : random.uniform(0x1p-3f);
        break;
      default:
        v = random.uniform(1.0f) * static_cast<float>(1 + random.below(4));
        break;
    }
  }
  return x;
}

}  // namespace draftproof::test
