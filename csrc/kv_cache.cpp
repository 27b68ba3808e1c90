#include "kv_cache.h"

#include <cstring>
#include <new>
#include <stdexcept>

namespace draftproof {
namespace {

int padded(int head_dim) { return (head_dim + kLanes - 1) / kLanes * kLanes; }
size_t element_bytes(KvType type) { return type == KvType::kF32 ? 4 : type == KvType::kQ8 ? 1 : 2; }
// Of the scales of a row of keys, and of one of values.
size_t scale_bytes(int head_dim, KvType type) {
  return type == KvType::kQ8 ? static_cast<size_t>(quant_blocks(head_dim)) * sizeof(float) : 0;
}
size_t bytes_of_head(int head_dim, KvType type) {
  return kPagePositions * (static_cast<size_t>(head_dim + padded(head_dim)) * element_bytes(type) +
                           2 * scale_bytes(head_dim, type));
}

size_t bytes_of_page(int layers, int kv_heads, int head_dim, KvType type) {
  if (layers < 1 || layers > 4096 || kv_heads < 1 || kv_heads > 4096 || head_dim < 1 ||
      head_dim > 1024)
    throw std::invalid_argument("KV cache: layers, heads or head_dim out of range");
  return static_cast<size_t>(layers) * static_cast<size_t>(kv_heads) *
         bytes_of_head(head_dim, type);
}

size_t total_bytes(size_t page, int num_pages) {
  if (num_pages < 1) throw std::invalid_argument("KV cache: needs at least one page");
  if (page > (size_t{1} << 46) / static_cast<size_t>(num_pages)) throw std::bad_alloc();
  return page * static_cast<size_t>(num_pages);
}

}  // namespace

KvCache::KvCache(int layers, int kv_heads, int head_dim, KvType type, int num_pages)
    : layers_(layers),
      kv_heads_(kv_heads),
      head_dim_(head_dim),
      value_stride_(padded(head_dim)),
      num_pages_(num_pages),
      type_(type),
      element_(element_bytes(type)),
      head_bytes_(bytes_of_head(head_dim, type)),
      page_bytes_(bytes_of_page(layers, kv_heads, head_dim, type)),
      arena_(total_bytes(page_bytes_, num_pages)) {}

KvView KvCache::view(int layer, int kv_head) const {
  const size_t head =
      static_cast<size_t>(layer) * static_cast<size_t>(kv_heads_) + static_cast<size_t>(kv_head);
  return {arena_.data(), page_bytes_, head * head_bytes_, type_, head_dim_, value_stride_};
}

void KvCache::copy_page(int from, int to) {
  if (from < 0 || to < 0 || from >= num_pages_ || to >= num_pages_)
    throw std::invalid_argument("KV cache: no such page");
  std::memcpy(arena_.data() + static_cast<size_t>(to) * page_bytes_,
              arena_.data() + static_cast<size_t>(from) * page_bytes_, page_bytes_);
}

std::vector<uint8_t> KvCache::read(const int32_t* pages, size_t num_table_pages,
                                   int64_t length) const {
  if (length < 0 ||
      static_cast<size_t>((length + kPagePositions - 1) / kPagePositions) > num_table_pages)
    throw std::invalid_argument("KV cache: length " + std::to_string(length) +
                                " is behind the block table");
  for (size_t i = 0; i < num_table_pages; ++i)
    if (pages[i] < 0 || pages[i] >= num_pages_)
      throw std::invalid_argument("KV cache: no such page");
  const size_t row = static_cast<size_t>(head_dim_) * element_;
  const size_t scales = scale_bytes(head_dim_, type_);
  const auto blocks = static_cast<int64_t>(scales / sizeof(float));
  std::vector<uint8_t> out(static_cast<size_t>(layers_) * static_cast<size_t>(kv_heads_) *
                           static_cast<size_t>(length) * 2 * (row + scales));
  uint8_t* to = out.data();
  for (int layer = 0; layer < layers_; ++layer) {
    for (int head = 0; head < kv_heads_; ++head) {
      const KvView kv = view(layer, head);
      for (int64_t p = 0; p < length; ++p, to += 2 * (row + scales)) {
        const uint8_t* base = kv.pages +
                              static_cast<size_t>(pages[p / kPagePositions]) * page_bytes_ +
                              kv.head_offset;
        const int64_t in_page = p % kPagePositions;
        const uint8_t* keys =
            base + static_cast<size_t>(in_page / kLanes * head_dim_ * kLanes + in_page % kLanes) *
                       element_;
        for (int d = 0; d < head_dim_; ++d)
          std::memcpy(to + static_cast<size_t>(d) * element_,
                      keys + static_cast<size_t>(d) * kLanes * element_, element_);
        const uint8_t* line =
            base +
            static_cast<size_t>(kPagePositions * head_dim_ + in_page * value_stride_) * element_;
        std::memcpy(to + row, line, row);
        const uint8_t* of_keys = base + kPagePositions * (head_dim_ + value_stride_);
        for (int64_t b = 0; b < blocks; ++b)
          std::memcpy(to + 2 * row + static_cast<size_t>(b) * sizeof(float),
                      of_keys + ((in_page / kLanes * blocks + b) * kLanes + in_page % kLanes) *
                                    static_cast<int64_t>(sizeof(float)),
                      sizeof(float));
        std::memcpy(to + 2 * row + scales,
                    of_keys + (kPagePositions + in_page) * static_cast<int64_t>(scales), scales);
      }
    }
  }
  return out;
}

}  // namespace draftproof
