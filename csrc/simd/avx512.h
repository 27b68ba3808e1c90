// The AVX-512 shim (F, BW, VL, VNNI, F16C): one register holds the sixteen lanes.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "simd/half.h"

namespace draftproof {
namespace {

struct Avx512 {
  static constexpr const char* kName = "avx512";
  static constexpr int kAccumulators = 24;
  static constexpr int kTileRows = 8;
  static constexpr bool kFullU8 = true;
  static constexpr int kSignedBias = 128;

  using F = __m512;
  using I = __m512i;
  using B = __m512i;

  static __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1); }

  static F zero() { return _mm512_setzero_ps(); }
  static F set1(float x) { return _mm512_set1_ps(x); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static F load_n(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static void store(float* p, F a) { _mm512_storeu_ps(p, a); }
  static void store_n(float* p, F a, int n) { _mm512_mask_storeu_ps(p, first(n), a); }
  static F load_f16(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static F load_bf16(const uint16_t* p) {
    const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
  }
  static void store_f16(uint16_t* p, F a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a, 0));
  }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }
  static F neg(F a) {
    return _mm512_castsi512_ps(
        _mm512_xor_si512(_mm512_castps_si512(a), _mm512_set1_epi32(INT32_MIN)));
  }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static F select_lt(F a, F b, F x, F y) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
  }
  static F keep_n(F a, int n) { return _mm512_maskz_mov_ps(first(n), a); }
  static float fold_add(F a) {
    const __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
  }
  static float fold_max(F a) {
    const __m256 b = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
  }

  static I izero() { return _mm512_setzero_si512(); }
  static I iset1(int32_t x) { return _mm512_set1_epi32(x); }
  static I iload(const int32_t* p) { return _mm512_loadu_si512(p); }
  static I iload_s8(const int8_t* p) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static void istore(int32_t* p, I a) { _mm512_storeu_si512(p, a); }
  static I iadd(I a, I b) { return _mm512_add_epi32(a, b); }
  static I isub(I a, I b) { return _mm512_sub_epi32(a, b); }
  static I imul(I a, I b) { return _mm512_mullo_epi32(a, b); }
  static I imax(I a, I b) { return _mm512_max_epi32(a, b); }
  static I iand(I a, I b) { return _mm512_and_si512(a, b); }
  static I ior(I a, I b) { return _mm512_or_si512(a, b); }
  template <int N>
  static I ishl(I a) {
    return _mm512_slli_epi32(a, N);
  }
  template <int N>
  static I ishr(I a) {
    return _mm512_srli_epi32(a, N);
  }
  template <int N>
  static I isar(I a) {
    return _mm512_srai_epi32(a, N);
  }
  static int32_t ifold_max(I a) {
    const __m256i b = _mm256_max_epi32(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1));
    __m128i c = _mm_max_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
    c = _mm_max_epi32(c, _mm_shuffle_epi32(c, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(c, _mm_shuffle_epi32(c, 0xb1)));
  }
  static int32_t ifold_add(I a) {
    const __m256i b = _mm256_add_epi32(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1));
    __m128i c = _mm_add_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
    c = _mm_add_epi32(c, _mm_shuffle_epi32(c, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(c, _mm_shuffle_epi32(c, 0xb1)));
  }

  static F to_float(I a) { return _mm512_cvtepi32_ps(a); }
  static I to_int(F a) { return _mm512_cvtps_epi32(a); }
  static I as_int(F a) { return _mm512_castps_si512(a); }
  static F as_float(I a) { return _mm512_castsi512_ps(a); }
  static void store_s8(int8_t* p, I a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a));
  }

  static B load_b(const uint8_t* p) { return _mm512_loadu_si512(p); }
  static B and_b(B a, uint8_t mask) {
    return _mm512_and_si512(a, _mm512_set1_epi8(static_cast<char>(mask)));
  }
  static B or_b(B a, B b) { return _mm512_or_si512(a, b); }
  template <int N>
  static B shr_b(B a, uint8_t mask) {
    return and_b(_mm512_srli_epi16(a, N), mask);
  }
  template <int N>
  static B shl_b(B a, uint8_t mask) {
    return and_b(_mm512_slli_epi16(a, N), mask);
  }
  static I dot4_u(I acc, B w, const int8_t* x) {
    return _mm512_dpbusd_epi32(acc, w, broadcast4(x));
  }
  static I dot4_s(I acc, B w, const int8_t* x) {
    return dot4_u(acc, _mm512_xor_si512(w, _mm512_set1_epi8(-128)), x);
  }
  static I dot2(I acc, I w, const int16_t* x) { return _mm512_dpwssd_epi32(acc, w, broadcast4(x)); }
  static B lookup(const uint8_t* table, B w) {
    const __m128i t = _mm_load_si128(reinterpret_cast<const __m128i*>(table));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(t), w);
  }
  // Upper halves of lanes times zero.
  static I factor16(I scale) { return iand(scale, iset1(0xffff)); }
  static I madd16(I acc, I a, I scale) { return _mm512_dpwssd_epi32(acc, a, scale); }
  static __m512i broadcast4(const void* p) {
    int32_t v;
    __builtin_memcpy(&v, p, 4);
    return _mm512_set1_epi32(v);
  }
  // Inlined by force: g++ takes a function that only prefetches for one without effect and drops
  // it.
  static inline __attribute__((always_inline)) void prefetch(const void* p) {
    _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1);
  }
};

}  // namespace
}  // namespace draftproof
