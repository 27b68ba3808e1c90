// A block of zeroed memory straight from the system: huge pages where it gives them, touched only
// where it is used, returned as a whole.
#pragma once

#include <cstddef>
#include <cstdint>

namespace draftproof {

class Arena {
 public:
  // Throws std::bad_alloc.
  explicit Arena(size_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  size_t size_;
  uint8_t* data_;
};

}  // namespace draftproof
