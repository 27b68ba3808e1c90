#include "arena.h"

#include <sys/mman.h>

#include <new>

namespace draftproof {

// Slack behind the end, so that a prefetch past the last weight stays inside the mapping.
constexpr size_t kSlack = 64 * 1024;

Arena::Arena(size_t bytes) : size_(bytes) {
  if (bytes > SIZE_MAX / 2) throw std::bad_alloc();
  void* p = mmap(nullptr, bytes + kSlack, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
  madvise(p, bytes + kSlack, MADV_HUGEPAGE);  // a wish: an error changes nothing
#endif
  data_ = static_cast<uint8_t*>(p);
}

Arena::~Arena() { munmap(data_, size_ + kSlack); }

}  // namespace draftproof
