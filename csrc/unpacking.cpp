// Single rows out of panels: what an embedding reads, and what tests compare kernels with.
#include <cstring>

#include "packed.h"
#include "panel_visit.h"
#include "simd/half.h"

namespace draftproof {
namespace {

int bit(const uint8_t* bytes, int byte, int n) { return (bytes[byte] >> n) & 1; }

// Input i of output r: nibble of the 32-input types.
int nibble32(const uint8_t (&q)[4][64], int r, int i) {
  const uint8_t byte = q[(i % 16) / 4][4 * r + i % 4];
  return i < 16 ? byte & 15 : byte >> 4;
}
int nibble256(const uint8_t (&q)[4][8][64], int r, int i) {
  const uint8_t byte = q[i / 64][(i % 32) / 4][4 * r + i % 4];
  return (i / 32) % 2 == 0 ? byte & 15 : byte >> 4;
}

struct ScaleMin {
  int scale, min;
};
// Six-bit scale and min of sub-block b out of the twelve bytes.
ScaleMin scale_min(const int32_t (&words)[3][16], int r, int b) {
  uint8_t s[12];
  for (int w = 0; w < 3; ++w) std::memcpy(s + 4 * w, &words[w][r], 4);
  if (b < 4) return {s[b] & 63, s[b + 4] & 63};
  return {(s[b + 4] & 15) | (s[b - 4] >> 6) << 4, (s[b + 4] >> 4) | (s[b] >> 6) << 4};
}

// Value of input i of output r.
float value(const PanelQ4_0& p, int r, int i) {
  return half_to_float(p.d[r]) * static_cast<float>(nibble32(p.q, r, i) - 8);
}
float value(const PanelQ4_1& p, int r, int i) {
  return half_to_float(p.d[r]) * static_cast<float>(nibble32(p.q, r, i)) + half_to_float(p.m[r]);
}
float value(const PanelQ5_0& p, int r, int i) {
  const int q = nibble32(p.q, r, i) + 16 * bit(p.high, 4 * r + i % 4, i / 4);
  return half_to_float(p.d[r]) * static_cast<float>(q - 16);
}
float value(const PanelQ5_1& p, int r, int i) {
  const int q = nibble32(p.q, r, i) + 16 * bit(p.high, 4 * r + i % 4, i / 4);
  return half_to_float(p.d[r]) * static_cast<float>(q) + half_to_float(p.m[r]);
}
float value(const PanelQ8_0& p, int r, int i) {
  return half_to_float(p.d[r]) * static_cast<float>(static_cast<int8_t>(p.q[i / 4][4 * r + i % 4]));
}
float value(const PanelQ4_K& p, int r, int i) {
  const ScaleMin sm = scale_min(p.scales, r, i / 32);
  return half_to_float(p.d[r]) * static_cast<float>(sm.scale * nibble256(p.q, r, i)) -
         half_to_float(p.dmin[r]) * static_cast<float>(sm.min);
}
float value(const PanelQ5_K& p, int r, int i) {
  const ScaleMin sm = scale_min(p.scales, r, i / 32);
  const int q = nibble256(p.q, r, i) + 16 * bit(p.high[(i % 32) / 4], 4 * r + i % 4, i / 32);
  return half_to_float(p.d[r]) * static_cast<float>(sm.scale * q) -
         half_to_float(p.dmin[r]) * static_cast<float>(sm.min);
}
float value(const PanelQ6_K& p, int r, int i) {
  const int n = i / 128, g = (i % 128) / 32, j = (i % 32) / 4, lane_byte = 4 * r + i % 4;
  const uint8_t low = p.low[n][g % 2][j][lane_byte];
  const int q = (g < 2 ? low & 15 : low >> 4) | ((p.high[n][j][lane_byte] >> (2 * g)) & 3) << 4;
  return half_to_float(p.d[r]) * static_cast<float>(p.scales[i / 16][r] * (q - 32));
}

// Two bits and scale of Q2_K and Q3_K.
int pair(const uint8_t (&q)[2][8][64], int r, int i) {
  return (q[i / 128][(i % 32) / 4][4 * r + i % 4] >> (2 * (i % 128 / 32))) & 3;
}
float value(const PanelQ2_K& p, int r, int i) {
  const int both = p.scales[i / 64][r] >> (8 * (i % 64 / 16)) & 255;
  return half_to_float(p.d[r]) * static_cast<float>((both & 15) * pair(p.q, r, i)) -
         half_to_float(p.dmin[r]) * static_cast<float>(both >> 4);
}
float value(const PanelQ3_K& p, int r, int i) {
  const int k = i / 16, down = 8 * (k % 4);
  const int low = p.scales[k / 4 % 2][r] >> (down + 4 * (k / 8)) & 15;
  const int scale = (low | (p.scales[2][r] >> (down + 2 * (k / 4)) & 3) << 4) - 32;
  const int third = bit(p.high[i % 32 / 4], 4 * r + i % 4, i / 32);
  return half_to_float(p.d[r]) * static_cast<float>(scale * (pair(p.q, r, i) + 4 * third - 4));
}
float value(const PanelIQ4_NL& p, int r, int i) {
  return half_to_float(p.d[r]) * static_cast<float>(kIq4Values[nibble32(p.q, r, i)]);
}
float value(const PanelIQ4_XS& p, int r, int i) {
  const int b = i / 32;
  const int scale =
      ((p.scales_low[r] >> (4 * b) & 15) | (p.scales_high[r] >> (2 * b) & 3) << 4) - 32;
  return half_to_float(p.d[r]) *
         static_cast<float>(scale * kIq4Values[nibble32(p.q[b], r, i % 32)]);
}
float value(const PanelMXFP4& p, int r, int i) {
  return exponent_to_float(p.exponent[r]) * static_cast<float>(kMxfp4Values[nibble32(p.q, r, i)]);
}

template <class Panel>
void unpack_blocks(const TypeInfo& t, const uint8_t* packed, int64_t in_features, int64_t row,
                   float* out) {
  const auto* panel = reinterpret_cast<const Panel*>(packed + static_cast<size_t>(row / kLanes) *
                                                                  panel_bytes(t, in_features));
  const int r = static_cast<int>(row % kLanes);
  for (int64_t k = 0; k < in_features; ++k)
    out[k] = value(panel[k / t.block_inputs], r, static_cast<int>(k % t.block_inputs));
}

template <class Word, class Widen>
void unpack_floats(const TypeInfo& t, Widen widen, const uint8_t* packed, int64_t in_features,
                   int64_t row, float* out) {
  const auto* panel = reinterpret_cast<const Word*>(
      packed + static_cast<size_t>(row / t.panel_outputs) * panel_bytes(t, in_features));
  for (int64_t k = 0; k < in_features; ++k)
    out[k] = widen(panel[k * t.panel_outputs + row % t.panel_outputs]);
}

}  // namespace

void unpack_row(WeightType type, const uint8_t* packed, int64_t in_features, int64_t row,
                float* out) {
  const TypeInfo& t = *type_info(static_cast<int32_t>(type));
  if (type == WeightType::kF32)
    return unpack_floats<float>(t, [](float x) { return x; }, packed, in_features, row, out);
  if (type == WeightType::kF16)
    return unpack_floats<uint16_t>(t, half_to_float, packed, in_features, row, out);
  if (type == WeightType::kBF16)
    return unpack_floats<uint16_t>(t, bfloat_to_float, packed, in_features, row, out);
  with_panel(type, [&]<class Panel>() { unpack_blocks<Panel>(t, packed, in_features, row, out); });
}

}  // namespace draftproof
