// Bytes of GGUF blocks into panels. Owns the permutations and the table of types; knows no tensor
// names and no threads.
#include <cstring>

#include "packed.h"
#include "panel_visit.h"

namespace draftproof {
namespace {

constexpr auto kFloat = ActForm::kFloat, k32 = ActForm::kBlock32, k256 = ActForm::kBlock256;
constexpr TypeInfo kTypes[kNumWeightTypes] = {
    {WeightType::kF32, 0, "f32", kFloat, 64, 1, 4},
    {WeightType::kF16, 1, "f16", kFloat, 64, 1, 2},
    {WeightType::kBF16, 2, "bf16", kFloat, 64, 1, 2},
    {WeightType::kQ4_0, 3, "q4_0", k32, 16, 32, 18},
    {WeightType::kQ4_1, 4, "q4_1", k32, 16, 32, 20},
    {WeightType::kQ5_0, 5, "q5_0", k32, 16, 32, 22},
    {WeightType::kQ5_1, 6, "q5_1", k32, 16, 32, 24},
    {WeightType::kQ8_0, 7, "q8_0", k32, 16, 32, 34},
    {WeightType::kQ4_K, 8, "q4_k", k256, 16, 256, 144},
    {WeightType::kQ5_K, 9, "q5_k", k256, 16, 256, 176},
    {WeightType::kQ6_K, 10, "q6_k", k256, 16, 256, 210},
    {WeightType::kQ2_K, 11, "q2_k", k256, 16, 256, 84},
    {WeightType::kQ3_K, 12, "q3_k", k256, 16, 256, 110},
    {WeightType::kIQ4_NL, 13, "iq4_nl", k32, 16, 32, 18},
    {WeightType::kIQ4_XS, 14, "iq4_xs", k256, 16, 256, 136},
    {WeightType::kMXFP4, 15, "mxfp4", k32, 16, 32, 17},
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

bool put(PanelQ2_K& p, int r, const uint8_t* s) {
  p.d[r] = read16(s + 80);
  p.dmin[r] = read16(s + 82);
  for (int w = 0; w < 4; ++w) std::memcpy(&p.scales[w][r], s + 4 * w, 4);
  for (int i = 0; i < 16; ++i) put4(p.q[i / 8][i % 8], r, s + 16 + 4 * i);
  return finite16(p.d[r]) && finite16(p.dmin[r]);
}
bool put(PanelQ3_K& p, int r, const uint8_t* s) {
  for (int j = 0; j < 8; ++j) put4(p.high[j], r, s + 4 * j);
  for (int i = 0; i < 16; ++i) put4(p.q[i / 8][i % 8], r, s + 32 + 4 * i);
  put_scales(p.scales, r, s + 96);
  p.d[r] = read16(s + 108);
  return finite16(p.d[r]);
}
bool put(PanelIQ4_NL& p, int r, const uint8_t* s) {
  p.d[r] = read16(s);
  put_nibbles32(p.q, r, s + 2);
  return finite16(p.d[r]);
}
bool put(PanelIQ4_XS& p, int r, const uint8_t* s) {
  p.d[r] = read16(s);
  p.scales_high[r] = read16(s + 2);
  std::memcpy(&p.scales_low[r], s + 4, 4);
  for (int b = 0; b < 8; ++b) put_nibbles32(p.q[b], r, s + 8 + 16 * b);
  return finite16(p.d[r]);
}
bool put(PanelMXFP4& p, int r, const uint8_t* s) {
  p.exponent[r] = s[0];
  put_nibbles32(p.q, r, s + 1);
  return s[0] <= 252;  // 255 is NaN; above 252 the greatest values are beyond float32
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

}  // namespace

const TypeInfo* type_info(int32_t ggml_type) {
  for (const TypeInfo& t : kTypes)
    if (static_cast<int32_t>(t.type) == ggml_type) return &t;
  return nullptr;
}
const TypeInfo& type_at(int index) { return kTypes[index]; }

int64_t pack_panels(WeightType type, const uint8_t* source, int64_t out_features,
                    int64_t in_features, uint8_t* packed, int64_t first, int64_t last) {
  const TypeInfo& t = *type_info(static_cast<int32_t>(type));
  const auto floats = [&](auto exponent) {
    return pack_floats(t, exponent, source, out_features, in_features, packed, first, last);
  };
  if (type == WeightType::kF32) return floats(uint32_t{0x7f800000});
  if (type == WeightType::kF16) return floats(uint16_t{0x7c00});
  if (type == WeightType::kBF16) return floats(uint16_t{0x7f80});
  return with_panel(type, [&]<class Panel>() {
    return pack_blocks<Panel>(t, source, out_features, in_features, packed, first, last);
  });
}

}  // namespace draftproof
