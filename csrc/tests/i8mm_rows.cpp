// Compiled like the neon_i8mm row: nothing here may run on a machine without i8mm.
#include "ops/table.h"
#include "simd/neon_i8mm.h"
#include "tested_kernels.h"

namespace draftproof::test {
namespace {

// A single row takes the product of two rows as well: twice itself.
struct EveryRow : NeonI8mm {
  static constexpr const char* kName = "neon_i8mm, every row";

  using NeonI8mm::add_block;
  template <class Panel, class Block>
  static void add_block(const Panel& w, ActRows<Block> x, F (&acc)[1]) {
    F twice[2] = {acc[0], acc[0]};
    NeonI8mm::add_block(w, ActRows<Block>{x.base, 0}, twice);
    acc[0] = twice[0];
  }
};

}  // namespace

const Kernels& i8mm_every_row() {
  static constexpr Kernels kTable = make_kernels<EveryRow>();
  return kTable;
}

}  // namespace draftproof::test
