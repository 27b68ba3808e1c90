// Memory for keys and values in pages of 64 positions; a page holds all layers and heads of its
// positions. Knows where things lie; who owns a page is the caller's business.
#pragma once

#include <vector>

#include "arena.h"
#include "kernels.h"

namespace draftproof {

class KvCache {
 public:
  // Throws std::invalid_argument (sizes) or std::bad_alloc.
  KvCache(int layers, int kv_heads, int head_dim, KvType type, int num_pages);

  int layers() const { return layers_; }
  int kv_heads() const { return kv_heads_; }
  int head_dim() const { return head_dim_; }
  int num_pages() const { return num_pages_; }
  size_t page_bytes() const { return page_bytes_; }

  KvView view(int layer, int kv_head) const;
  void copy_page(int from, int to);

  // The stored bits of the first `length` positions behind a block table, without padding, in the
  // order layer, head, position: k, v, scales of k, scales of v. Throws std::invalid_argument.
  std::vector<uint8_t> read(const int32_t* pages, size_t num_table_pages, int64_t length) const;

 private:
  int layers_, kv_heads_, head_dim_, value_stride_, num_pages_;
  KvType type_;
  size_t element_, head_bytes_, page_bytes_;
  Arena arena_;
};

}  // namespace draftproof
