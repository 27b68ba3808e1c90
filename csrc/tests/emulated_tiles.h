// The tile registers of AMX in plain C++, as the manual describes them, and a stand-in for the
// kernels' HardwareTiles on top. What the manual makes a fault is counted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace draftproof::test {
namespace {  // included by files with different instruction sets

class TileFile {
 public:
  uint64_t products = 0, faults = 0;

  // `config`: the 64 bytes that ldtilecfg reads.
  void configure(const uint8_t* config) {
    std::memset(tiles_, 0, sizeof tiles_);
    uint16_t row_bytes[16];
    std::memcpy(row_bytes, config + 16, sizeof row_bytes);
    bool valid = config[0] == 1 && config[1] == 0;
    for (int i = 2; i < 16; ++i) valid = valid && config[i] == 0;
    for (int i = 0; i < 16; ++i) {
      const int rows = config[48 + i], bytes = row_bytes[i];
      valid = valid && rows <= (i < kNum ? 16 : 0) && bytes <= (i < kNum ? 64 : 0) &&
              (rows == 0) == (bytes == 0);
    }
    configured_ = valid;
    if (!valid) ++faults;
    for (int i = 0; valid && i < kNum; ++i) {
      tiles_[i].rows = config[48 + i];
      tiles_[i].row_bytes = row_bytes[i];
    }
  }
  void release() {
    configured_ = false;
    std::memset(tiles_, 0, sizeof tiles_);
  }
  void zero(int tile) {
    if (usable(tile)) std::memset(tiles_[tile].bytes, 0, sizeof tiles_[tile].bytes);
  }
  void load(int tile, const uint8_t* from, int64_t stride) {
    zero(tile);
    if (!usable(tile)) return;
    Tile& t = tiles_[tile];
    for (int r = 0; r < t.rows; ++r)
      std::memcpy(t.bytes[r], from + r * stride, static_cast<size_t>(t.row_bytes));
  }
  void store(int tile, uint8_t* to, int64_t stride) {
    if (!usable(tile)) return;
    const Tile& t = tiles_[tile];
    for (int r = 0; r < t.rows; ++r)
      std::memcpy(to + r * stride, t.bytes[r], static_cast<size_t>(t.row_bytes));
  }
  // sum[m][n] += over k of a[m][k] * b[k / 4][n][k % 4], modulo 2^32.
  void multiply(int sum, int a, int b, bool a_signed, bool b_signed) {
    if (!usable(sum) || !usable(a) || !usable(b)) return;
    Tile& c = tiles_[sum];
    const Tile &x = tiles_[a], &w = tiles_[b];
    if (sum == a || sum == b || a == b || c.rows != x.rows || c.row_bytes != w.row_bytes ||
        x.row_bytes != 4 * w.rows || c.row_bytes % 4 != 0) {
      ++faults;
      return;
    }
    ++products;
    for (int m = 0; m < c.rows; ++m) {
      for (int n = 0; n < c.row_bytes / 4; ++n) {
        uint32_t total;
        std::memcpy(&total, c.bytes[m] + 4 * n, 4);
        for (int k = 0; k < x.row_bytes; ++k)
          total += static_cast<uint32_t>(value(x.bytes[m][k], a_signed) *
                                         value(w.bytes[k / 4][4 * n + k % 4], b_signed));
        std::memcpy(c.bytes[m] + 4 * n, &total, 4);
      }
    }
  }

 private:
  static constexpr int kNum = 8;
  struct Tile {
    int rows, row_bytes;
    uint8_t bytes[16][64];
  };

  bool usable(int tile) {
    if (configured_ && tile < kNum && tiles_[tile].rows > 0) return true;
    ++faults;
    return false;
  }
  static int value(uint8_t byte, bool is_signed) {
    return is_signed ? static_cast<int8_t>(byte) : byte;
  }

  bool configured_ = false;
  Tile tiles_[kNum] = {};
};

// HardwareTiles' interface. Tiles are numbered as there: two sums, activations, weights.
class EmulatedTiles {
 public:
  static inline TileFile file;

  EmulatedTiles(int rows, int depth) {
    uint8_t config[64] = {1};
    for (int t = 0; t < 4; ++t) {
      config[16 + 2 * t] = static_cast<uint8_t>(t == 2 ? depth : 64);
      config[48 + t] = static_cast<uint8_t>(t == 3 ? depth / 4 : rows);
    }
    file.configure(config);
  }
  ~EmulatedTiles() { file.release(); }
  EmulatedTiles(const EmulatedTiles&) = delete;
  EmulatedTiles& operator=(const EmulatedTiles&) = delete;

  template <auto kTile>
  void zero() {
    file.zero(kTile);
  }
  template <auto kTile>
  void load(const void* from, size_t stride) {
    file.load(kTile, static_cast<const uint8_t*>(from), static_cast<int64_t>(stride));
  }
  template <auto kTile>
  void store(void* to, size_t stride) {
    file.store(kTile, static_cast<uint8_t*>(to), static_cast<int64_t>(stride));
  }
  template <auto kSum, bool kSignedWeights>
  void multiply() {
    file.multiply(kSum, 2, 3, true, kSignedWeights);
  }
};

}  // namespace
}  // namespace draftproof::test
