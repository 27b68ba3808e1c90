// Bytes of GGUF blocks into panels and single rows back out of them. Owns the permutations; knows
// no tensor names and no threads.
#include <cstring>

#include "packed.h"
#include "simd/half.h"

namespace draftproof {
namespace {

constexpr TypeInfo kTypes[] = {
    {0, "f32", ActForm::kFloat, 64, 1, 4},          {1, "f16", ActForm::kFloat, 64, 1, 2},
    {2, "bf16", ActForm::kFloat, 64, 1, 2},         {3, "q4_0", ActForm::kBlock32, 16, 32, 18},
    {4, "q4_1", ActForm::kBlock32, 16, 32, 20},     {5, "q5_0", ActForm::kBlock32, 16, 32, 22},
    {6, "q5_1", ActForm::kBlock32, 16, 32, 24},     {7, "q8_0", ActForm::kBlock32, 16, 32, 34},
    {8, "q4_k", ActForm::kBlock256, 16, 256, 144},  {9, "q5_k", ActForm::kBlock256, 16, 256, 176},
    {10, "q6_k", ActForm::kBlock256, 16, 256, 210},
};

uint16_t read16(const uint8_t* p) {
  uint16_t x;
  std::memcpy(&x, p, 2);
  return x;
}
bool finite16(uint16_t half) { return (half & 0x7c00) != 0x7c00; }

// Four consecutive bytes of one output into its lane.
void put4(uint8_t* vector, int lane, const uint8_t* bytes) {
  std::memcpy(vector + 4 * lane, bytes, 4);
}

void put_nibbles32(uint8_t (&q)[4][64], int r, const uint8_t* bytes) {
  for (int j = 0; j < 4; ++j) put4(q[j], r, bytes + 4 * j);
}

// qh of Q5_0 and Q5_1: bit i belongs to input i; regrouped so that byte t holds the inputs 4j+t.
void put_high32(uint8_t (&high)[64], int r, const uint8_t* bytes) {
  uint32_t bits;
  std::memcpy(&bits, bytes, 4);
  for (int t = 0; t < 4; ++t) {
    uint8_t byte = 0;
    for (int j = 0; j < 8; ++j) byte |= static_cast<uint8_t>(((bits >> (4 * j + t)) & 1) << j);
    high[4 * r + t] = byte;
  }
}

void put_scales(int32_t (&scales)[3][16], int r, const uint8_t* bytes) {
  for (int w = 0; w < 3; ++w) std::memcpy(&scales[w][r], bytes + 4 * w, 4);
}

// put(panel, r, source block) for each type: false if a scale is not finite.
bool put(PanelQ4_0& p, int r, const uint8_t* s) {
  p.d[r] = read16(s);
  put_nibbles32(p.q, r, s + 2);
  return finite16(p.d[r]);
}
bool put(PanelQ4_1& p, int r, const uint8_t* s) {
  p.d[r] = read16(s);
  p.m[r] = read16(s + 2);
  put_nibbles32(p.q, r, s + 4);
  return finite16(p.d[r]) && finite16(p.m[r]);
}
bool put(PanelQ5_0& p, int r, const uint8_t* s) {
  p.d[r] = read16(s);
  put_high32(p.high, r, s + 2);
  put_nibbles32(p.q, r, s + 6);
  return finite16(p.d[r]);
}
bool put(PanelQ5_1& p, int r, const uint8_t* s) {
  p.d[r] = read16(s);
  p.m[r] = read16(s + 2);
  put_high32(p.high, r, s + 4);
  put_nibbles32(p.q, r, s + 8);
  return finite16(p.d[r]) && finite16(p.m[r]);
}
bool put(PanelQ8_0& p, int r, const uint8_t* s) {
  p.d[r] = read16(s);
  for (int j = 0; j < 8; ++j) put4(p.q[j], r, s + 2 + 4 * j);
  return finite16(p.d[r]);
}
bool put(PanelQ4_K& p, int r, const uint8_t* s) {
  p.d[r] = read16(s);
  p.dmin[r] = read16(s + 2);
  put_scales(p.scales, r, s + 4);
  for (int i = 0; i < 32; ++i) put4(p.q[i / 8][i % 8], r, s + 16 + 4 * i);
  return finite16(p.d[r]) && finite16(p.dmin[r]);
}
bool put(PanelQ5_K& p, int r, const uint8_t* s) {
  p.d[r] = read16(s);
  p.dmin[r] = read16(s + 2);
  put_scales(p.scales, r, s + 4);
  for (int j = 0; j < 8; ++j) put4(p.high[j], r, s + 16 + 4 * j);
  for (int i = 0; i < 32; ++i) put4(p.q[i / 8][i % 8], r, s + 48 + 4 * i);
  return finite16(p.d[r]) && finite16(p.dmin[r]);
}
bool put(PanelQ6_K& p, int r, const uint8_t* s) {
  for (int i = 0; i < 32; ++i) put4(p.low[i / 16][(i / 8) % 2][i % 8], r, s + 4 * i);
  for (int i = 0; i < 16; ++i) put4(p.high[i / 8][i % 8], r, s + 128 + 4 * i);
  for (int b = 0; b < 16; ++b) p.scales[b][r] = static_cast<int8_t>(s[192 + b]);
  p.d[r] = read16(s + 208);
  return finite16(p.d[r]);
}

template <class Panel>
int64_t pack_blocks(const TypeInfo& t, const uint8_t* source, int64_t out_features,
                    int64_t in_features, uint8_t* packed, int64_t first, int64_t last) {
  const int64_t blocks = in_features / t.block_inputs;
  const size_t row_bytes = static_cast<size_t>(blocks) * t.source_block_bytes;
  for (int64_t panel = first; panel < last; ++panel) {
    auto* out =
        reinterpret_cast<Panel*>(packed + static_cast<size_t>(panel) * panel_bytes(t, in_features));
    const int64_t base = panel * kLanes;
    const int64_t rows = out_features - base < kLanes ? out_features - base : kLanes;
    if (rows < kLanes) std::memset(out, 0, panel_bytes(t, in_features));
    for (int64_t b = 0; b < blocks; ++b) {
      for (int r = 0; r < rows; ++r) {
        const uint8_t* s = source + static_cast<size_t>(base + r) * row_bytes +
                           static_cast<size_t>(b) * t.source_block_bytes;
        if (!put(out[b], r, s)) return base + r;
      }
    }
  }
  return -1;
}

template <class Word>
int64_t pack_floats(const TypeInfo& t, Word exponent, const uint8_t* source, int64_t out_features,
                    int64_t in_features, uint8_t* packed, int64_t first, int64_t last) {
  const auto* in = reinterpret_cast<const Word*>(source);
  for (int64_t panel = first; panel < last; ++panel) {
    auto* out =
        reinterpret_cast<Word*>(packed + static_cast<size_t>(panel) * panel_bytes(t, in_features));
    for (int r = 0; r < t.panel_outputs; ++r) {
      const int64_t row = panel * t.panel_outputs + r;
      for (int64_t k = 0; k < in_features; ++k) {
        Word word = 0;
        if (row < out_features) std::memcpy(&word, in + row * in_features + k, sizeof word);
        if ((word & exponent) == exponent) return row;
        out[k * t.panel_outputs + r] = word;
      }
    }
  }
  return -1;
}

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

const TypeInfo* type_info(int32_t ggml_type) {
  switch (static_cast<WeightType>(ggml_type)) {
    case WeightType::kF32:
      return &kTypes[0];
    case WeightType::kF16:
      return &kTypes[1];
    case WeightType::kBF16:
      return &kTypes[2];
    case WeightType::kQ4_0:
      return &kTypes[3];
    case WeightType::kQ4_1:
      return &kTypes[4];
    case WeightType::kQ5_0:
      return &kTypes[5];
    case WeightType::kQ5_1:
      return &kTypes[6];
    case WeightType::kQ8_0:
      return &kTypes[7];
    case WeightType::kQ4_K:
      return &kTypes[8];
    case WeightType::kQ5_K:
      return &kTypes[9];
    case WeightType::kQ6_K:
      return &kTypes[10];
  }
  return nullptr;
}

int64_t pack_panels(WeightType type, const uint8_t* source, int64_t out_features,
                    int64_t in_features, uint8_t* packed, int64_t first, int64_t last) {
  const TypeInfo& t = *type_info(static_cast<int32_t>(type));
  const auto blocks = [&]<class Panel>(Panel*) {
    return pack_blocks<Panel>(t, source, out_features, in_features, packed, first, last);
  };
  const auto floats = [&](auto exponent) {
    return pack_floats(t, exponent, source, out_features, in_features, packed, first, last);
  };
  switch (type) {
    case WeightType::kF32:
      return floats(uint32_t{0x7f800000});
    case WeightType::kF16:
      return floats(uint16_t{0x7c00});
    case WeightType::kBF16:
      return floats(uint16_t{0x7f80});
    case WeightType::kQ4_0:
      return blocks(static_cast<PanelQ4_0*>(nullptr));
    case WeightType::kQ4_1:
      return blocks(static_cast<PanelQ4_1*>(nullptr));
    case WeightType::kQ5_0:
      return blocks(static_cast<PanelQ5_0*>(nullptr));
    case WeightType::kQ5_1:
      return blocks(static_cast<PanelQ5_1*>(nullptr));
    case WeightType::kQ8_0:
      return blocks(static_cast<PanelQ8_0*>(nullptr));
    case WeightType::kQ4_K:
      return blocks(static_cast<PanelQ4_K*>(nullptr));
    case WeightType::kQ5_K:
      return blocks(static_cast<PanelQ5_K*>(nullptr));
    case WeightType::kQ6_K:
      return blocks(static_cast<PanelQ6_K*>(nullptr));
  }
  return -1;
}

void unpack_row(WeightType type, const uint8_t* packed, int64_t in_features, int64_t row,
                float* out) {
  const TypeInfo& t = *type_info(static_cast<int32_t>(type));
  const auto blocks = [&]<class Panel>(Panel*) {
    unpack_blocks<Panel>(t, packed, in_features, row, out);
  };
  switch (type) {
    case WeightType::kF32:
      return unpack_floats<float>(t, [](float x) { return x; }, packed, in_features, row, out);
    case WeightType::kF16:
      return unpack_floats<uint16_t>(t, half_to_float, packed, in_features, row, out);
    case WeightType::kBF16:
      return unpack_floats<uint16_t>(t, bfloat_to_float, packed, in_features, row, out);
    case WeightType::kQ4_0:
      return blocks(static_cast<PanelQ4_0*>(nullptr));
    case WeightType::kQ4_1:
      return blocks(static_cast<PanelQ4_1*>(nullptr));
    case WeightType::kQ5_0:
      return blocks(static_cast<PanelQ5_0*>(nullptr));
    case WeightType::kQ5_1:
      return blocks(static_cast<PanelQ5_1*>(nullptr));
    case WeightType::kQ8_0:
      return blocks(static_cast<PanelQ8_0*>(nullptr));
    case WeightType::kQ4_K:
      return blocks(static_cast<PanelQ4_K*>(nullptr));
    case WeightType::kQ5_K:
      return blocks(static_cast<PanelQ5_K*>(nullptr));
    case WeightType::kQ6_K:
      return blocks(static_cast<PanelQ6_K*>(nullptr));
  }
}

}  // namespace draftproof
