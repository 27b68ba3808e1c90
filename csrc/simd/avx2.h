// The AVX2 shim (with FMA and F16C): two registers hold the sixteen lanes.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "simd/half.h"

namespace draftproof {
namespace {

struct Avx2 {
  static constexpr const char* kName = "avx2";
  static constexpr int kAccumulators = 6;
  static constexpr int kTileRows = 4;
  static constexpr int kSignedBias = 0;
  static constexpr bool kFullU8 = false;

  struct F {
    __m256 a, b;
  };
  struct I {
    __m256i a, b;
  };
  struct B {
    __m256i a, b;
  };

  static __m256i first8(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }

  static F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static F set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static F load_n(const float* p, int n) {
    return {_mm256_maskload_ps(p, first8(n)), _mm256_maskload_ps(p + 8, first8(n - 8))};
  }
  static void store(float* p, F x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
  }
  static void store_n(float* p, F x, int n) {
    _mm256_maskstore_ps(p, first8(n), x.a);
    _mm256_maskstore_ps(p + 8, first8(n - 8), x.b);
  }
  static F load_f16(const uint16_t* p) {
    const auto* q = reinterpret_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
  }
  static F load_bf16(const uint16_t* p) {
    const auto* q = reinterpret_cast<const __m128i*>(p);
    const __m256i a = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(q)), 16);
    const __m256i b = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(q + 1)), 16);
    return {_mm256_castsi256_ps(a), _mm256_castsi256_ps(b)};
  }
  static void store_f16(uint16_t* p, F x) {
    auto* q = reinterpret_cast<__m128i*>(p);
    _mm_storeu_si128(q, _mm256_cvtps_ph(x.a, 0));
    _mm_storeu_si128(q + 1, _mm256_cvtps_ph(x.b, 0));
  }
  static F add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
  static F sub(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
  static F mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
  static F div(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
  static F fma(F x, F y, F z) {
    return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
  }
  static F fnma(F x, F y, F z) {
    return {_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b)};
  }
  static F neg(F x) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_xor_ps(x.a, sign), _mm256_xor_ps(x.b, sign)};
  }
  static F max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
  static F min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
  static F select_lt(F a, F b, F x, F y) {
    return {_mm256_blendv_ps(y.a, x.a, _mm256_cmp_ps(a.a, b.a, _CMP_LT_OQ)),
            _mm256_blendv_ps(y.b, x.b, _mm256_cmp_ps(a.b, b.b, _CMP_LT_OQ))};
  }
  static F keep_n(F x, int n) {
    return {_mm256_and_ps(x.a, _mm256_castsi256_ps(first8(n))),
            _mm256_and_ps(x.b, _mm256_castsi256_ps(first8(n - 8)))};
  }
  static float fold_add(F x) {
    const __m256 b = _mm256_add_ps(x.a, x.b);
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
  }
  static float fold_max(F x) {
    const __m256 b = _mm256_max_ps(x.a, x.b);
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
  }

  static I izero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  static I iset1(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
  static I iload(const int32_t* p) {
    const auto* q = reinterpret_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
  }
  static I iload_s8(const int8_t* p) {
    const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_cvtepi8_epi32(v), _mm256_cvtepi8_epi32(_mm_srli_si128(v, 8))};
  }
  static void istore(int32_t* p, I x) {
    auto* q = reinterpret_cast<__m256i*>(p);
    _mm256_storeu_si256(q, x.a);
    _mm256_storeu_si256(q + 1, x.b);
  }
  static I iadd(I x, I y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
  static I isub(I x, I y) { return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
  static I imul(I x, I y) { return {_mm256_mullo_epi32(x.a, y.a), _mm256_mullo_epi32(x.b, y.b)}; }
  static I imax(I x, I y) { return {_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)}; }
  static I iand(I x, I y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
  static I ior(I x, I y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
  template <int N>
  static I ishl(I x) {
    return {_mm256_slli_epi32(x.a, N), _mm256_slli_epi32(x.b, N)};
  }
  template <int N>
  static I ishr(I x) {
    return {_mm256_srli_epi32(x.a, N), _mm256_srli_epi32(x.b, N)};
  }
  template <int N>
  static I isar(I x) {
    return {_mm256_srai_epi32(x.a, N), _mm256_srai_epi32(x.b, N)};
  }
  static int32_t ifold_max(I x) {
    const __m256i b = _mm256_max_epi32(x.a, x.b);
    __m128i c = _mm_max_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
    c = _mm_max_epi32(c, _mm_shuffle_epi32(c, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(c, _mm_shuffle_epi32(c, 0xb1)));
  }
  static int32_t ifold_add(I x) {
    const __m256i b = _mm256_add_epi32(x.a, x.b);
    __m128i c = _mm_add_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
    c = _mm_add_epi32(c, _mm_shuffle_epi32(c, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(c, _mm_shuffle_epi32(c, 0xb1)));
  }

  static F to_float(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
  static I to_int(F x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
  static I as_int(F x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
  static F as_float(I x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
  static void store_s8(int8_t* p, I x) {
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8);
    const __m128i bytes =
        _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
  }

  static B load_b(const uint8_t* p) {
    const auto* q = reinterpret_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
  }
  static B and_b(B x, uint8_t mask) {
    const __m256i m = _mm256_set1_epi8(static_cast<char>(mask));
    return {_mm256_and_si256(x.a, m), _mm256_and_si256(x.b, m)};
  }
  static B or_b(B x, B y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
  template <int N>
  static B shr_b(B x, uint8_t mask) {
    return and_b({_mm256_srli_epi16(x.a, N), _mm256_srli_epi16(x.b, N)}, mask);
  }
  template <int N>
  static B shl_b(B x, uint8_t mask) {
    return and_b({_mm256_slli_epi16(x.a, N), _mm256_slli_epi16(x.b, N)}, mask);
  }
  // Weights at most 127: a pair sum is at most 2 * 127 * 127 = 32,258, so the int16 never
  // saturates.
  static I dot4_u(I acc, B w, const int8_t* x) {
    const __m256i v = broadcast4(x), one = _mm256_set1_epi16(1);
    const __m256i a = _mm256_madd_epi16(_mm256_maddubs_epi16(w.a, v), one);
    const __m256i b = _mm256_madd_epi16(_mm256_maddubs_epi16(w.b, v), one);
    return {_mm256_add_epi32(acc.a, a), _mm256_add_epi32(acc.b, b)};
  }
  // |w| with sign(x, w): exact for w = -128 too, 2 * 128 * 127 = 32,512.
  static I dot4_s(I acc, B w, const int8_t* x) {
    const __m256i v = broadcast4(x), one = _mm256_set1_epi16(1);
    const __m256i a = _mm256_maddubs_epi16(_mm256_abs_epi8(w.a), _mm256_sign_epi8(v, w.a));
    const __m256i b = _mm256_maddubs_epi16(_mm256_abs_epi8(w.b), _mm256_sign_epi8(v, w.b));
    return {_mm256_add_epi32(acc.a, _mm256_madd_epi16(a, one)),
            _mm256_add_epi32(acc.b, _mm256_madd_epi16(b, one))};
  }
  static I dot2(I acc, I w, const int16_t* x) {
    const __m256i v = broadcast4(x);
    return {_mm256_add_epi32(acc.a, _mm256_madd_epi16(w.a, v)),
            _mm256_add_epi32(acc.b, _mm256_madd_epi16(w.b, v))};
  }
  static B lookup(const uint8_t* table, B w) {
    const __m256i t =
        _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(table)));
    return {_mm256_shuffle_epi8(t, w.a), _mm256_shuffle_epi8(t, w.b)};
  }
  // Upper halves of lanes times zero.
  static I factor16(I scale) { return iand(scale, iset1(0xffff)); }
  static I madd16(I acc, I a, I scale) {
    return {_mm256_add_epi32(acc.a, _mm256_madd_epi16(a.a, scale.a)),
            _mm256_add_epi32(acc.b, _mm256_madd_epi16(a.b, scale.b))};
  }
  static __m256i broadcast4(const void* p) {
    int32_t v;
    __builtin_memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
  }
  // Inlined by force: g++ takes a function that only prefetches for one without effect and drops
  // it.
  static inline __attribute__((always_inline)) void prefetch(const void* p) {
    _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1);
  }
};

}  // namespace
}  // namespace draftproof
