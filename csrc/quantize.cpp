#include "quantize.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <vector>

#include "block_fit.h"
#include "fp_env.h"
#include "packed.h"
#include "simd/half.h"

namespace draftproof {
namespace {

using fit::all;
using fit::level;
using fit::V;

bool put16(uint8_t* p, uint16_t half) {
  std::memcpy(p, &half, 2);
  return (half & 0x7c00) != 0x7c00;
}

// The scale as it is stored.
float stored(float scale) { return half_to_float(float_to_half(scale)); }

float magnitude(float x) { return x < 0 ? -x : x; }

// Lane l gets block l of the row: N values each.
template <int N>
void gather(const float* row, int64_t blocks, V (&x)[N]) {
  for (int i = 0; i < N; ++i)
    for (int l = 0; l < fit::kLanes8; ++l) x[i][l] = l < blocks ? row[l * N + i] : 0;
}

// What a block weighs an error by: large values count more, as they do in a product.
template <int N>
void weigh(const V (&x)[N], V (&w)[N]) {
  V squares = all(0), mean;
  for (int i = 0; i < N; ++i) squares += x[i] * x[i];
  for (int l = 0; l < fit::kLanes8; ++l) mean[l] = std::sqrt(squares[l] / static_cast<float>(N));
  for (int i = 0; i < N; ++i) w[i] = mean + fit::magnitude(x[i]);
}

bool q8_0(const float* row, int64_t width, uint8_t* out) {
  bool fine = true;
  for (int64_t b = 0; b < width / 32; ++b, row += 32, out += 34) {
    float most = 0;
    for (int i = 0; i < 32; ++i) most = std::max(most, magnitude(row[i]));
    const float d = most / 127, inverse = d > 0 ? 1 / d : 0;
    fine &= put16(out, float_to_half(d));
    for (int i = 0; i < 32; ++i) {
      // Half away from zero, as everybody does here: ties are common in weights with few bits.
      const float scaled = std::min(magnitude(row[i] * inverse), 127.0f);
      const float down = static_cast<float>(static_cast<int>(scaled));
      const int q = static_cast<int>(down) + (scaled - down >= 0.5f ? 1 : 0);
      out[2 + i] = static_cast<uint8_t>(static_cast<int8_t>(row[i] < 0 ? -q : q));
    }
  }
  return fine;
}

bool q5_0(const float* row, int64_t width, uint8_t* out) {
  bool fine = true;
  V x[32], w[32];
  std::fill(w, w + 32, all(1));
  for (int64_t first = 0; first < width / 32; first += fit::kLanes8) {
    const int64_t blocks = std::min<int64_t>(width / 32 - first, fit::kLanes8);
    gather(row + 32 * first, blocks, x);
    const V scale = fit::fit_symmetric(x, w, 16);
    V d;
    for (int l = 0; l < fit::kLanes8; ++l) d[l] = stored(scale[l]);
    const V inverse = fit::inverse_of(d);
    V q[32];
    for (int i = 0; i < 32; ++i) q[i] = 16 + level(x[i] * inverse, all(-16), all(15));
    for (int l = 0; l < blocks; ++l, out += 22) {
      fine &= put16(out, float_to_half(scale[l]));
      uint32_t high = 0;
      std::memset(out + 6, 0, 16);
      for (int i = 0; i < 32; ++i) {
        const auto n = static_cast<uint32_t>(q[i][l]);
        out[6 + i % 16] |= static_cast<uint8_t>((n & 15) << (i < 16 ? 0 : 4));
        high |= n >> 4 << i;
      }
      std::memcpy(out + 2, &high, 4);
    }
  }
  return fine;
}

// Twelve bytes: six bits each of eight scales and eight mins.
void put_scales(V scales, V mins, uint8_t* out) {
  for (int l = 0; l < 8; ++l) {
    const int s = static_cast<int>(scales[l]), m = static_cast<int>(mins[l]);
    if (l < 4) {
      out[l] |= static_cast<uint8_t>(s);
      out[l + 4] |= static_cast<uint8_t>(m);
    } else {
      out[l + 4] |= static_cast<uint8_t>((s & 15) | (m & 15) << 4);
      out[l - 4] |= static_cast<uint8_t>((s >> 4) << 6);
      out[l] |= static_cast<uint8_t>((m >> 4) << 6);
    }
  }
}

bool q4_k(const float* row, int64_t width, uint8_t* out) {
  bool fine = true;
  V x[32], w[32];
  for (int64_t b = 0; b < width / 256; ++b, row += 256, out += 144) {
    gather(row, 8, x);
    weigh(x, w);
    const fit::Affine best = fit::fit_affine(x, w, 15);
    float most_scale = 0, most_min = 0;
    for (int l = 0; l < 8; ++l) {
      most_scale = std::max(most_scale, best.scale[l]);
      most_min = std::max(most_min, -best.base[l]);
    }
    const float d = stored(most_scale / 63), dmin = stored(most_min / 63);
    std::memset(out, 0, 144);
    fine &= put16(out, float_to_half(d)) && put16(out + 2, float_to_half(dmin));
    const V s0 = level(best.scale * fit::inverse_of(all(d)), all(0), all(63));
    const V m0 = level(-best.base * fit::inverse_of(all(dmin)), all(0), all(63));
    // Under the rounded d and dmin a neighbour of an integer scale or min may fit better.
    V scales = s0, mins = m0, least = all(fit::kHuge);
    for (int step = 0; step < 9; ++step) {
      const V s = level(s0 + static_cast<float>(step / 3 - 1), all(0), all(63));
      const V m = level(m0 + static_cast<float>(step % 3 - 1), all(0), all(63));
      const V error = fit::error_of(x, w, d * s, -(dmin * m), 0, 15);
      const auto better = error < least;
      least = better ? error : least;
      scales = better ? s : scales;
      mins = better ? m : mins;
    }
    put_scales(scales, mins, out + 4);
    const V base = -(dmin * mins), inverse = fit::inverse_of(d * scales);
    for (int i = 0; i < 32; ++i) {
      const V q = level((x[i] - base) * inverse, all(0), all(15));
      for (int l = 0; l < 8; ++l)
        out[16 + 32 * (l / 2) + i] |= static_cast<uint8_t>(static_cast<int>(q[l]) << 4 * (l % 2));
    }
  }
  return fine;
}

bool q6_k(const float* row, int64_t width, uint8_t* out) {
  bool fine = true;
  V x[2][16], w[2][16], fitted[2];
  for (int64_t b = 0; b < width / 256; ++b, row += 256, out += 210) {
    float extreme = 0;
    for (int half = 0; half < 2; ++half) {
      gather(row + 128 * half, 8, x[half]);
      for (int i = 0; i < 16; ++i) w[half][i] = x[half][i] * x[half][i];
      fitted[half] = fit::fit_symmetric(x[half], w[half], 32);
      for (int l = 0; l < 8; ++l)
        if (magnitude(fitted[half][l]) > magnitude(extreme)) extreme = fitted[half][l];
    }
    const float d = stored(extreme / -128);
    std::memset(out, 0, 210);
    fine &= put16(out + 208, float_to_half(d));
    for (int half = 0; half < 2; ++half) {
      const V s0 = level(fitted[half] * fit::inverse_of(all(d)), all(-128), all(127));
      V scales = s0, least = all(fit::kHuge);  // see q4_k
      for (int step = -1; step <= 1; ++step) {
        const V s = level(s0 + static_cast<float>(step), all(-128), all(127));
        const V error = fit::error_of(x[half], w[half], d * s, all(0), -32, 31);
        const auto better = error < least;
        least = better ? error : least;
        scales = better ? s : scales;
      }
      const V inverse = fit::inverse_of(d * scales);
      uint8_t *low = out + 64 * half, *high = out + 128 + 32 * half;
      for (int l = 0; l < 8; ++l)
        out[192 + 8 * half + l] = static_cast<uint8_t>(static_cast<int8_t>(scales[l]));
      for (int i = 0; i < 16; ++i) {
        const V q = 32 + level(x[half][i] * inverse, all(-32), all(31));
        for (int l = 0; l < 8; ++l) {
          const int group = l / 2, place = 16 * (l % 2) + i, n = static_cast<int>(q[l]);
          low[32 * (group % 2) + place] |= static_cast<uint8_t>((n & 15) << 4 * (group / 2));
          high[place] |= static_cast<uint8_t>((n >> 4) << 2 * group);
        }
      }
    }
  }
  return fine;
}

bool narrow(const float* row, int64_t width, uint16_t (*convert)(float), uint8_t* out) {
  bool fine = true;
  for (int64_t i = 0; i < width; ++i) {
    const uint16_t half = convert(row[i]);
    std::memcpy(out + 2 * i, &half, 2);
    const float back = convert == float_to_half ? half_to_float(half) : bfloat_to_float(half);
    fine &= std::isfinite(back);
  }
  return fine;
}

bool widen(WeightType type, const uint8_t* source, int64_t width, float* row) {
  bool fine = true;
  for (int64_t i = 0; i < width; ++i) {
    if (type == WeightType::kF32) {
      std::memcpy(row + i, source + 4 * i, 4);
    } else {
      uint16_t half;
      std::memcpy(&half, source + 2 * i, 2);
      row[i] = type == WeightType::kF16 ? half_to_float(half) : bfloat_to_float(half);
    }
    fine &= std::isfinite(row[i]);
  }
  return fine;
}

bool write_row(WeightType type, const float* row, int64_t width, uint8_t* out) {
  switch (type) {
    case WeightType::kF16:
      return narrow(row, width, float_to_half, out);
    case WeightType::kBF16:
      return narrow(row, width, float_to_bfloat, out);
    case WeightType::kQ8_0:
      return q8_0(row, width, out);
    case WeightType::kQ5_0:
      return q5_0(row, width, out);
    case WeightType::kQ4_K:
      return q4_k(row, width, out);
    case WeightType::kQ6_K:
      return q6_k(row, width, out);
    default:
      std::memcpy(out, row, static_cast<size_t>(width) * 4);
      return true;
  }
}

}  // namespace

size_t quantized_row_bytes(int32_t ggml_type, int64_t width) {
  switch (static_cast<WeightType>(ggml_type)) {
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16:
    case WeightType::kQ8_0:
    case WeightType::kQ5_0:
    case WeightType::kQ4_K:
    case WeightType::kQ6_K:
      break;
    default:
      return 0;
  }
  const TypeInfo& t = *type_info(ggml_type);
  if (width < 1 || width >= int64_t{1} << 31 || width % t.block_inputs) return 0;
  return static_cast<size_t>(width / t.block_inputs) * t.source_block_bytes;
}

int64_t quantize_rows(int32_t source_type, const uint8_t* source, int32_t ggml_type, int64_t rows,
                      int64_t width, uint8_t* out, ThreadPool& pool) {
  const auto from = static_cast<WeightType>(source_type), to = static_cast<WeightType>(ggml_type);
  const size_t source_bytes = static_cast<size_t>(width) * (from == WeightType::kF32 ? 4 : 2);
  const size_t row_bytes = quantized_row_bytes(ggml_type, width);
  std::vector<std::vector<float>> buffers(static_cast<size_t>(pool.size()),
                                          std::vector<float>(static_cast<size_t>(width)));
  std::atomic<int64_t> next{0}, bad{-1};
  pool.run([&](int thread) {
    const FpGuard guard;
    float* row = buffers[static_cast<size_t>(thread)].data();
    for (int64_t r; (r = next.fetch_add(1)) < rows;) {
      const auto at = static_cast<size_t>(r);
      if (!widen(from, source + at * source_bytes, width, row) ||
          !write_row(to, row, width, out + at * row_bytes))
        bad.store(r);
    }
  });
  return bad.load();
}

}  // namespace draftproof
