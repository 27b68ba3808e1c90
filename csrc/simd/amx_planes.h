// The weights of a panel as planes of bytes, ready for tile products: sub-block scales are folded
// in, and a product that doesn't fit a byte is split into two planes, each exact: isum = high <<
// shift + low. Owns which planes a type has and how they are made.
#pragma once

#include <cstddef>

#include "ops/linear.h"
#include "simd/avx512.h"

namespace draftproof {
namespace {

// How a block is multiplied: in steps of at most 64 inputs, with one or two planes of weights.
struct Planes {
  int steps;
  bool low_signed;
  int shift = 0;  // of the high plane; 0: there is none
  bool high_signed = false;
  bool negated = false;  // the weights, so that they fit
};
template <class Panel>
constexpr Planes kPlanes{1, false};  // Q4_1, Q5_1
template <>
constexpr Planes kPlanes<PanelQ4_0>{1, true};
template <>
constexpr Planes kPlanes<PanelQ5_0>{1, true};
template <>
constexpr Planes kPlanes<PanelQ8_0>{1, true};
template <>
constexpr Planes kPlanes<PanelQ4_K>{4, false, 3};
template <>
constexpr Planes kPlanes<PanelQ5_K>{4, false, 3};
template <>
constexpr Planes kPlanes<PanelQ6_K>{4, false, 8, true};
template <>
constexpr Planes kPlanes<PanelQ2_K>{4, false};
template <>
constexpr Planes kPlanes<PanelQ3_K>{4, true, 0, false, true};
template <>
constexpr Planes kPlanes<PanelIQ4_NL>{1, true};
template <>
constexpr Planes kPlanes<PanelIQ4_XS>{4, false, 8, true};
template <>
constexpr Planes kPlanes<PanelMXFP4>{1, true};

constexpr size_t kPlaneBytes = 16 * 64;

struct PlaneSlot {
  alignas(64) uint8_t bytes[2][kPlaneBytes];  // low and high plane of a step
  uint8_t apart[1024];  // slots 3 KiB apart are less often the same line to the store buffer
};

// --- weights of a step as planes -----------------------------------------------------------------

DP_INLINE void put(PlaneSlot& to, int plane, int row, __m512i v) {
  _mm512_store_si512(to.bytes[plane] + 64 * row, v);
}
DP_INLINE __m512i low_nibbles(__m512i v) { return Avx512::and_b(v, 0x0f); }
DP_INLINE __m512i high_nibbles(__m512i v) { return Avx512::shr_b<4>(v, 0x0f); }
// v + 16 where `bit` is set.
DP_INLINE __m512i with_fifth(__m512i v, __m512i bits, int bit) {
  const __mmask64 set = _mm512_test_epi8_mask(bits, _mm512_set1_epi8(static_cast<char>(1 << bit)));
  return _mm512_mask_add_epi8(v, set, v, _mm512_set1_epi8(16));
}

DP_INLINE void unpack_nibbles(const uint8_t (&q)[4][64], int offset, PlaneSlot& to) {
  const __m512i minus = _mm512_set1_epi8(static_cast<char>(offset));
  for (int j = 0; j < 4; ++j) {
    const __m512i v = Avx512::load_b(q[j]);
    put(to, 0, j, _mm512_sub_epi8(low_nibbles(v), minus));
    put(to, 0, 4 + j, _mm512_sub_epi8(high_nibbles(v), minus));
  }
}
DP_INLINE void unpack_fives(const uint8_t (&q)[4][64], const uint8_t (&high)[64], int offset,
                            PlaneSlot& to) {
  const __m512i minus = _mm512_set1_epi8(static_cast<char>(offset)), bits = Avx512::load_b(high);
  for (int j = 0; j < 4; ++j) {
    const __m512i v = Avx512::load_b(q[j]);
    put(to, 0, j, _mm512_sub_epi8(with_fifth(low_nibbles(v), bits, j), minus));
    put(to, 0, 4 + j, _mm512_sub_epi8(with_fifth(high_nibbles(v), bits, j + 4), minus));
  }
}
void unpack(const PanelQ4_0& w, int, PlaneSlot& to) { unpack_nibbles(w.q, 8, to); }
void unpack(const PanelQ4_1& w, int, PlaneSlot& to) { unpack_nibbles(w.q, 0, to); }
void unpack(const PanelQ5_0& w, int, PlaneSlot& to) { unpack_fives(w.q, w.high, 16, to); }
void unpack(const PanelQ5_1& w, int, PlaneSlot& to) { unpack_fives(w.q, w.high, 0, to); }
void unpack(const PanelQ8_0& w, int, PlaneSlot& to) {
  for (int j = 0; j < 8; ++j) put(to, 0, j, Avx512::load_b(w.q[j]));
}

// Scale s (0 .. 63) of a sub-block as s & 7 and s >> 3, in both int16 halves of each lane.
struct SplitScale {
  __m512i low, high;
};
DP_INLINE SplitScale split(__m512i s) {
  return {_mm512_and_si512(s, _mm512_set1_epi16(7)), _mm512_srli_epi16(s, 3)};
}
// Scales of sub-blocks 2 step and 2 step + 1.
DP_INLINE void scales_of_step(const int32_t (&words)[3][16], int step, SplitScale (&scales)[2]) {
  const SixBits<Avx512> all = scales_of<Avx512>(words);
  const __m512i word = step < 2 ? all.low : all.high;
  const __m512i half = step % 2 == 0 ? _mm512_and_si512(word, _mm512_set1_epi32(0xffff))
                                     : _mm512_srli_epi32(word, 16);
  const __m512i pair = _mm512_or_si512(half, _mm512_slli_epi32(half, 16));
  scales[0] = split(_mm512_and_si512(pair, _mm512_set1_epi16(0xff)));
  scales[1] = split(_mm512_srli_epi16(pair, 8));
}

// Weights of at most 31 times factors of at most 7 fit uint8: one int16 multiplication serves two.
void unpack(const PanelQ4_K& w, int step, PlaneSlot& to) {
  SplitScale s[2];
  scales_of_step(w.scales, step, s);
  // High nibbles stay where they are, times 16; with factors times 2^12 their product is the upper
  // half of an int32.
  const __m512i low = _mm512_slli_epi16(s[1].low, 12), high = _mm512_slli_epi16(s[1].high, 12);
  for (int j = 0; j < 8; ++j) {
    const __m512i v = Avx512::load_b(w.q[step][j]);
    const __m512i first = low_nibbles(v), second = Avx512::and_b(v, 0xf0);
    put(to, 0, j, _mm512_mullo_epi16(first, s[0].low));
    put(to, 1, j, _mm512_mullo_epi16(first, s[0].high));
    put(to, 0, 8 + j, _mm512_mulhi_epu16(second, low));
    put(to, 1, 8 + j, _mm512_mulhi_epu16(second, high));
  }
}

void unpack(const PanelQ5_K& w, int step, PlaneSlot& to) {
  SplitScale s[2];
  scales_of_step(w.scales, step, s);
  for (int j = 0; j < 8; ++j) {
    const __m512i v = Avx512::load_b(w.q[step][j]), bits = Avx512::load_b(w.high[j]);
    const __m512i first = with_fifth(low_nibbles(v), bits, 2 * step);
    const __m512i second = with_fifth(high_nibbles(v), bits, 2 * step + 1);
    put(to, 0, j, _mm512_mullo_epi16(first, s[0].low));
    put(to, 1, j, _mm512_mullo_epi16(first, s[0].high));
    put(to, 0, 8 + j, _mm512_mullo_epi16(second, s[1].low));
    put(to, 1, 8 + j, _mm512_mullo_epi16(second, s[1].high));
  }
}

// The bytes of w, signed, times s (both int16 halves of a lane): the product's low byte, unsigned,
// and its high byte.
DP_INLINE void put_products(__m512i even_w, __m512i odd_w, __m512i s, int row, PlaneSlot& to) {
  const __m512i even_bytes = _mm512_set1_epi16(0xff);
  const __m512i even = _mm512_mullo_epi16(even_w, s), odd = _mm512_mullo_epi16(odd_w, s);
  put(to, 0, row, _mm512_or_si512(_mm512_and_si512(even, even_bytes), _mm512_slli_epi16(odd, 8)));
  put(to, 1, row,
      _mm512_or_si512(_mm512_srli_epi16(even, 8), _mm512_andnot_si512(even_bytes, odd)));
}
DP_INLINE __m512i both_halves(__m512i s) {
  return _mm512_or_si512(_mm512_and_si512(s, _mm512_set1_epi32(0xffff)), _mm512_slli_epi32(s, 16));
}

// (u - 32) * s is -4064 .. 4096: its low byte, unsigned, and its high byte, -16 .. 16.
void unpack(const PanelQ6_K& w, int step, PlaneSlot& to) {
  const int n = step / 2;
  const __m512i down = _mm512_set1_epi16(static_cast<short>(4 * (step % 2)));
  const __m512i even_bytes = _mm512_set1_epi16(0xff), minus = _mm512_set1_epi16(32);
  const auto sub_block = [&](auto part) DP_INLINED {  // four of them, of sixteen inputs
    constexpr int h = part / 2;
    const __m512i s = both_halves(Avx512::iload_s8(w.scales[4 * step + part]));
    for (int i = 0; i < 4; ++i) {
      const int j = 4 * (part % 2) + i;
      const __m512i low = _mm512_srlv_epi16(Avx512::load_b(w.low[n][h][j]), down);
      const __m512i bits = _mm512_srlv_epi16(Avx512::load_b(w.high[n][j]), down);
      const __m512i u = _mm512_or_si512(low_nibbles(low), moved_bits<Avx512, 2 * h, 4>(bits, 0x30));
      const __m512i even = _mm512_sub_epi16(_mm512_and_si512(u, even_bytes), minus);
      const __m512i odd = _mm512_sub_epi16(_mm512_srli_epi16(u, 8), minus);
      put_products(even, odd, s, 8 * h + j, to);
    }
  };
  unroll<4>(sub_block);
}

// u * s is at most 3 * 15.
void unpack(const PanelQ2_K& w, int step, PlaneSlot& to) {
  const __m512i scales = Avx512::iand(Avx512::iload(w.scales[step]), Avx512::iset1(0x0f0f0f0f));
  const __m512i down = _mm512_set1_epi16(static_cast<short>(4 * (step % 2)));
  unroll<4>([&](auto part) DP_INLINED {
    const __m512i s = both_halves(scale_byte<Avx512, part>(scales));
    for (int i = 0; i < 4; ++i) {
      const int j = 4 * (part % 2) + i;
      const __m512i v = _mm512_srlv_epi16(Avx512::load_b(w.q[step / 2][j]), down);
      const __m512i u = Avx512::shr_b<2 * (part / 2)>(v, 0x03);
      put(to, 0, 4 * part + i, _mm512_mullo_epi16(u, s));
    }
  });
}

// -(u - 4) * (S - 32) is -128 .. 124, so it may be computed modulo 256: as 4 s -+ u |s|, where
// u |s| is at most 7 * 32, and x xor -1 is -x - 1.
void unpack(const PanelQ3_K& w, int step, PlaneSlot& to) {
  const __m512i scales = scales_of<Avx512>(w).word[step];
  const __m512i down = _mm512_set1_epi16(static_cast<short>(4 * (step % 2)));
  const __m512i third = _mm512_set1_epi16(static_cast<short>(2 * step));
  unroll<4>([&](auto part) DP_INLINED {
    const __m512i s = Avx512::isub(scale_byte<Avx512, part>(scales), Avx512::iset1(32));
    const __m512i size = both_halves(_mm512_abs_epi32(s));
    const __m512i minus = _mm512_movm_epi32(_mm512_cmpgt_epi32_mask(s, Avx512::izero()));
    const __m512i byte = Avx512::iand(Avx512::isub(Avx512::ishl<2>(s), minus), Avx512::iset1(0xff));
    const __m512i start = Avx512::imul(byte, Avx512::iset1(0x01010101));
    for (int i = 0; i < 4; ++i) {
      const int j = 4 * (part % 2) + i;
      const __m512i v = _mm512_srlv_epi16(Avx512::load_b(w.q[step / 2][j]), down);
      const __m512i bits = _mm512_srlv_epi16(Avx512::load_b(w.high[j]), third);
      const __m512i u = _mm512_or_si512(Avx512::shr_b<2 * (part / 2)>(v, 0x03),
                                        moved_bits<Avx512, part / 2, 2>(bits, 0x04));
      const __m512i product = _mm512_mullo_epi16(u, size);
      put(to, 0, 4 * part + i, _mm512_add_epi8(start, _mm512_xor_si512(product, minus)));
    }
  });
}

DP_INLINE __m512i iq4_values(__m512i nibbles) {
  return Avx512::lookup(ValueTable<kIq4Values, 0>::kBytes.v, nibbles);
}
void unpack(const PanelIQ4_NL& w, int, PlaneSlot& to) {
  for (int j = 0; j < 4; ++j) {
    const __m512i v = Avx512::load_b(w.q[j]);
    put(to, 0, j, iq4_values(low_nibbles(v)));
    put(to, 0, 4 + j, iq4_values(high_nibbles(v)));
  }
}
void unpack(const PanelMXFP4& w, int, PlaneSlot& to) {
  for (int j = 0; j < 4; ++j) {
    const __m512i v = Avx512::load_b(w.q[j]);
    const uint8_t* table = ValueTable<kMxfp4Values, 0>::kBytes.v;
    put(to, 0, j, Avx512::lookup(table, low_nibbles(v)));
    put(to, 0, 4 + j, Avx512::lookup(table, high_nibbles(v)));
  }
}

// A value times (S - 32) is -3937 .. 4064.
void unpack(const PanelIQ4_XS& w, int step, PlaneSlot& to) {
  const __m512i down = _mm512_set1_epi32(8 * step), down_high = _mm512_set1_epi32(4 * step);
  const __m512i words = _mm512_srlv_epi32(Avx512::iload(w.scales_low), down);
  const __m512i high =
      _mm512_srlv_epi32(Avx512::as_int(Avx512::load_bf16(w.scales_high)), down_high);
  const auto put_signed = [&](__m512i v, __m512i s, int row) DP_INLINED {
    put_products(_mm512_srai_epi16(_mm512_slli_epi16(v, 8), 8), _mm512_srai_epi16(v, 8), s, row,
                 to);
  };
  unroll<2>([&](auto half) DP_INLINED {
    const __m512i scale =
        Avx512::ior(Avx512::iand(Avx512::ishr<4 * half>(words), Avx512::iset1(0x0f)),
                    Avx512::iand(Avx512::ishr<12 + 2 * half>(high), Avx512::iset1(0x30)));
    const __m512i s = both_halves(Avx512::isub(scale, Avx512::iset1(32)));
    for (int j = 0; j < 4; ++j) {
      const __m512i v = Avx512::load_b(w.q[2 * step + half][j]);
      put_signed(iq4_values(low_nibbles(v)), s, 8 * half + j);
      put_signed(iq4_values(high_nibbles(v)), s, 8 * half + 4 + j);
    }
  });
}

}  // namespace
}  // namespace draftproof
