#include "tested_kernels.h"

#include "dispatch.h"

namespace draftproof::test {
namespace {

std::vector<const Kernels*> find_rows() {
  std::vector<const Kernels*> rows = available_kernels();
#if defined(DRAFTPROOF_ARM)
  if (rows.back() == &neon_i8mm_kernels()) rows.push_back(&i8mm_every_row());
#endif
  return rows;
}

}  // namespace

const std::vector<const Kernels*>& tested_kernels() {
  static const std::vector<const Kernels*> rows = find_rows();
  return rows;
}

}  // namespace draftproof::test
