// Packed weights and quantized activations: the bytes that kernels read. Knows layouts; computes
// nothing.
//
// A linear weight [out, in] is cut into panels of consecutive outputs; lanes are outputs. Panels of
// quantized types have 16 outputs and hold one block per 32 or 256 inputs; each block is a pure
// permutation of sixteen GGUF blocks (facts of the source formats: llama.cpp's ggml-common.h), so
// the packed size is the file's size, rounded up to whole panels. A byte vector of 64 holds, for
// lane r, four consecutive inputs in its bytes 4r .. 4r+3. Panels of float types have 64 outputs,
// one line of 64 values per input. Missing outputs of the last panel are zero.
#pragma once

#include <cstddef>
#include <cstdint>

namespace draftproof {

inline constexpr int kLanes = 16;

// Ids as in GGUF files.
enum class WeightType : int32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ4_NL = 20,
  kIQ4_XS = 23,
  kBF16 = 30,
  kMXFP4 = 39,
};
inline constexpr int kNumWeightTypes = 16;

// Which quantized form of the activations a weight type multiplies.
enum class ActForm : int32_t { kFloat = 0, kBlock32 = 1, kBlock256 = 2 };

// One block of a quantized activation row: q = round-half-even(x * (127 / amax)), d = amax / 127;
// amax < 2^-60 gives d = 0, q = 0.
struct ActBlock32 {
  float d;
  int32_t sum;  // of q
  int8_t q[32];
};

struct ActBlock256 {
  float d;
  int32_t sum;            // of q
  int32_t sum16_m32[16];  // -32 * (sum of q over 16): where the accumulators of Q6_K start
  int16_t sum32[8];       // sums of q over 32, in the order 0 2 1 3 4 6 5 7 (see mins_of)
  int16_t sum16[16];      // sums of q over 16, each four in the order 0 2 1 3
  int8_t q[256];
};

// Blocks of a panel; r = output within the panel, t = input mod 4.
struct PanelQ4_0 {
  uint16_t d[16];
  uint8_t q[4][64];  // q[j], lane r, byte t: low nibble input 4j+t, high nibble input 16+4j+t
};
struct PanelQ4_1 {
  uint16_t d[16], m[16];
  uint8_t q[4][64];
};
struct PanelQ5_0 {
  uint16_t d[16];
  uint8_t high[64];  // lane r, byte t: bit j = fifth bit of input 4j+t
  uint8_t q[4][64];
};
struct PanelQ5_1 {
  uint16_t d[16], m[16];
  uint8_t high[64];
  uint8_t q[4][64];
};
struct PanelQ8_0 {
  uint16_t d[16];
  uint8_t q[8][64];  // q[j], lane r, byte t: input 4j+t, signed
};
struct PanelQ4_K {
  uint16_t d[16], dmin[16];
  int32_t scales[3][16];  // the file's twelve bytes per output as three words
  uint8_t q[4][8][64];    // q[p][j]: low nibble input 64p+4j+t, high nibble input 64p+32+4j+t
};
struct PanelQ5_K {
  uint16_t d[16], dmin[16];
  int32_t scales[3][16];
  uint8_t high[8][64];  // high[j]: bit b = fifth bit of input 32b+4j+t
  uint8_t q[4][8][64];
};
struct PanelQ6_K {
  uint16_t d[16];
  int8_t scales[16][16];     // scales[s][r]: inputs 16s .. 16s+15
  uint8_t low[2][2][8][64];  // low[n][h][j]: low nibble input 128n+32h+4j+t, high nibble 64 further
  uint8_t high[2][8][64];    // high[n][j]: bits 2g, 2g+1 = top bits of input 128n+32g+4j+t
};
struct PanelQ2_K {
  uint16_t d[16], dmin[16];
  int32_t scales[4]
                [16];   // byte k of word w: low nibble scale, high nibble min of inputs 64w+16k ..
  uint8_t q[2][8][64];  // q[n][j]: bits 2g, 2g+1 = input 128n+32g+4j+t
};
struct PanelQ3_K {
  uint16_t d[16];
  int32_t scales[3][16];  // the file's twelve bytes per output as three words
  uint8_t high[8][64];    // high[j]: bit 4n+g = third bit of input 128n+32g+4j+t
  uint8_t q[2][8][64];    // as Q2_K
};
struct PanelIQ4_NL {
  uint16_t d[16];
  uint8_t q[4][64];  // as Q4_0; each nibble is a place in kIq4Values
};
struct PanelIQ4_XS {
  uint16_t d[16];
  uint16_t scales_high[16];  // bits 2b, 2b+1 = upper bits of the scale of sub-block b
  int32_t scales_low[16];    // nibble b = its lower bits
  uint8_t q[8][4][64];       // q[b]: inputs 32b .. 32b+31 as in IQ4_NL
};
struct PanelMXFP4 {
  uint8_t exponent[16];  // d = 2^(exponent - 128)
  uint8_t q[4][64];      // as Q4_0; each nibble is a place in kMxfp4Values
};
static_assert(sizeof(PanelQ4_0) == 16 * 18 && sizeof(PanelQ4_1) == 16 * 20);
static_assert(sizeof(PanelQ5_0) == 16 * 22 && sizeof(PanelQ5_1) == 16 * 24);
static_assert(sizeof(PanelQ8_0) == 16 * 34 && sizeof(PanelQ4_K) == 16 * 144);
static_assert(sizeof(PanelQ5_K) == 16 * 176 && sizeof(PanelQ6_K) == 16 * 210);
static_assert(sizeof(PanelQ2_K) == 16 * 84 && sizeof(PanelQ3_K) == 16 * 110);
static_assert(sizeof(PanelIQ4_NL) == 16 * 18 && sizeof(PanelIQ4_XS) == 16 * 136);
static_assert(sizeof(PanelMXFP4) == 16 * 17);

// The values that four bits stand for. MXFP4's are doubled, so that they are integers.
inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};
inline constexpr int8_t kMxfp4Values[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                            0, -1, -2, -3, -4, -6, -8, -12};

struct TypeInfo {
  WeightType type;
  int index;  // 0 .. kNumWeightTypes - 1, of the kernel tables
  const char* name;
  ActForm form;
  int panel_outputs;          // 16 or 64
  int block_inputs;           // inputs per block: 1, 32 or 256
  size_t source_block_bytes;  // bytes of one block of one output in the file
};

// nullptr if the type can't be packed.
const TypeInfo* type_info(int32_t ggml_type);
const TypeInfo& type_at(int index);

// Bytes of one block of a whole panel.
inline size_t panel_block_bytes(const TypeInfo& t) {
  return t.source_block_bytes * static_cast<size_t>(t.panel_outputs);
}
inline int64_t num_panels(const TypeInfo& t, int64_t out_features) {
  return (out_features + t.panel_outputs - 1) / t.panel_outputs;
}
inline size_t panel_bytes(const TypeInfo& t, int64_t in_features) {
  return panel_block_bytes(t) * static_cast<size_t>(in_features / t.block_inputs);
}

// Packs panels [first, last) of a tensor whose rows lie one behind the other at `source`. Returns
// -1, or the first row that has a scale or weight that is not finite.
int64_t pack_panels(WeightType type, const uint8_t* source, int64_t out_features,
                    int64_t in_features, uint8_t* packed, int64_t first, int64_t last);

// out[in_features] = the float values of output `row`: d*(s*q) [- dmin*m or + m], at most one
// rounding. In unpacking.cpp.
void unpack_row(WeightType type, const uint8_t* packed, int64_t in_features, int64_t row,
                float* out);

}  // namespace draftproof
