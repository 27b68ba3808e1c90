// The NEON shim (AArch64 with dotprod): four registers hold the sixteen lanes.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "simd/half.h"

namespace draftproof {
namespace {

struct Neon {
  static constexpr const char* kName = "neon";
  static constexpr int kAccumulators = 6;
  static constexpr int kTileRows = 8;
  static constexpr int kSignedBias = 0;
  // sdot reads weights as int8.
  static constexpr bool kFullU8 = false;

  struct F {
    float32x4_t a, b, c, d;
  };
  struct I {
    int32x4_t a, b, c, d;
  };
  struct B {
    uint8x16_t a, b, c, d;
  };

  // fn of each of the four registers.
  template <class Out, class Fn, class... X>
  __attribute__((always_inline)) static Out each(Fn fn, X... x) {
    return {fn(x.a...), fn(x.b...), fn(x.c...), fn(x.d...)};
  }
  template <class Fn, class... X>
  __attribute__((always_inline)) static F feach(Fn fn, X... x) {
    return each<F>(fn, x...);
  }
  template <class Fn, class... X>
  __attribute__((always_inline)) static I ieach(Fn fn, X... x) {
    return each<I>(fn, x...);
  }
  template <class Fn, class... X>
  __attribute__((always_inline)) static B beach(Fn fn, X... x) {
    return each<B>(fn, x...);
  }

  static F zero() { return set1(0.0f); }
  static F set1(float x) {
    const float32x4_t v = vdupq_n_f32(x);
    return {v, v, v, v};
  }
  static F load(const float* p) {
    return {vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)};
  }
  // There are no masked loads: the tail takes a detour through memory.
  static F load_n(const float* p, int n) {
    if (n == 16) return load(p);
    float line[16] = {};
    std::memcpy(line, p, static_cast<size_t>(n) * sizeof(float));
    return load(line);
  }
  static void store(float* p, F x) {
    vst1q_f32(p, x.a);
    vst1q_f32(p + 4, x.b);
    vst1q_f32(p + 8, x.c);
    vst1q_f32(p + 12, x.d);
  }
  static void store_n(float* p, F x, int n) {
    if (n == 16) return store(p, x);
    float line[16];
    store(line, x);
    std::memcpy(p, line, static_cast<size_t>(n) * sizeof(float));
  }
  // Exact because FpGuard clears FPCR.AHP.
  static F load_f16(const uint16_t* p) {
    const auto wide = [](uint16x4_t h) { return vcvt_f32_f16(vreinterpret_f16_u16(h)); };
    const uint16x8_t low = vld1q_u16(p), high = vld1q_u16(p + 8);
    return {wide(vget_low_u16(low)), wide(vget_high_u16(low)), wide(vget_low_u16(high)),
            wide(vget_high_u16(high))};
  }
  static F load_bf16(const uint16_t* p) {
    const auto wide = [](uint16x4_t h) { return vreinterpretq_f32_u32(vshll_n_u16(h, 16)); };
    const uint16x8_t low = vld1q_u16(p), high = vld1q_u16(p + 8);
    return {wide(vget_low_u16(low)), wide(vget_high_u16(low)), wide(vget_low_u16(high)),
            wide(vget_high_u16(high))};
  }
  static void store_f16(uint16_t* p, F x) {
    const auto half = [](float32x4_t v) { return vreinterpret_u16_f16(vcvt_f16_f32(v)); };
    vst1q_u16(p, vcombine_u16(half(x.a), half(x.b)));
    vst1q_u16(p + 8, vcombine_u16(half(x.c), half(x.d)));
  }
  static F add(F x, F y) {
    return feach([](auto u, auto v) { return vaddq_f32(u, v); }, x, y);
  }
  static F sub(F x, F y) {
    return feach([](auto u, auto v) { return vsubq_f32(u, v); }, x, y);
  }
  static F mul(F x, F y) {
    return feach([](auto u, auto v) { return vmulq_f32(u, v); }, x, y);
  }
  static F div(F x, F y) {
    return feach([](auto u, auto v) { return vdivq_f32(u, v); }, x, y);
  }
  static F fma(F x, F y, F z) {
    return feach([](auto u, auto v, auto w) { return vfmaq_f32(w, u, v); }, x, y, z);
  }
  static F fnma(F x, F y, F z) {
    return feach([](auto u, auto v, auto w) { return vfmsq_f32(w, u, v); }, x, y, z);
  }
  static F neg(F x) {
    return feach([](auto u) { return vnegq_f32(u); }, x);
  }
  // Not fmax and fmin, which treat NaN and the two zeros in their own ways.
  static float32x4_t max4(float32x4_t x, float32x4_t y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }
  static F max(F x, F y) {
    return feach([](auto u, auto v) { return max4(u, v); }, x, y);
  }
  static F min(F x, F y) {
    return feach([](auto u, auto v) { return vbslq_f32(vcltq_f32(u, v), u, v); }, x, y);
  }
  static F select_lt(F a, F b, F x, F y) {
    return feach([](auto s, auto t, auto u, auto v) { return vbslq_f32(vcltq_f32(s, t), u, v); }, a,
                 b, x, y);
  }
  static F keep_n(F x, int n) {
    const int32x4_t lanes = {0, 1, 2, 3};
    const auto keep = [&](float32x4_t v, int first) {
      const uint32x4_t mask = vcltq_s32(lanes, vdupq_n_s32(n - first));
      return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(v), mask));
    };
    return {keep(x.a, 0), keep(x.b, 4), keep(x.c, 8), keep(x.d, 12)};
  }
  static float fold_add(F x) {
    const float32x4_t v = vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d));
    const float32x2_t h = vadd_f32(vget_low_f32(v), vget_high_f32(v));
    return vget_lane_f32(h, 0) + vget_lane_f32(h, 1);
  }
  static float fold_max(F x) {
    const float32x4_t v = max4(max4(x.a, x.c), max4(x.b, x.d));
    const float32x2_t low = vget_low_f32(v), high = vget_high_f32(v);
    const float32x2_t h = vbsl_f32(vcgt_f32(low, high), low, high);
    const float first = vget_lane_f32(h, 0), second = vget_lane_f32(h, 1);
    return first > second ? first : second;
  }

  static I izero() { return iset1(0); }
  static I iset1(int32_t x) {
    const int32x4_t v = vdupq_n_s32(x);
    return {v, v, v, v};
  }
  static I iload(const int32_t* p) {
    return {vld1q_s32(p), vld1q_s32(p + 4), vld1q_s32(p + 8), vld1q_s32(p + 12)};
  }
  static I iload_s8(const int8_t* p) {
    const int8x16_t v = vld1q_s8(p);
    const int16x8_t low = vmovl_s8(vget_low_s8(v)), high = vmovl_s8(vget_high_s8(v));
    return {vmovl_s16(vget_low_s16(low)), vmovl_s16(vget_high_s16(low)),
            vmovl_s16(vget_low_s16(high)), vmovl_s16(vget_high_s16(high))};
  }
  static void istore(int32_t* p, I x) {
    vst1q_s32(p, x.a);
    vst1q_s32(p + 4, x.b);
    vst1q_s32(p + 8, x.c);
    vst1q_s32(p + 12, x.d);
  }
  static I iadd(I x, I y) {
    return ieach([](auto u, auto v) { return vaddq_s32(u, v); }, x, y);
  }
  static I isub(I x, I y) {
    return ieach([](auto u, auto v) { return vsubq_s32(u, v); }, x, y);
  }
  static I imul(I x, I y) {
    return ieach([](auto u, auto v) { return vmulq_s32(u, v); }, x, y);
  }
  static I imax(I x, I y) {
    return ieach([](auto u, auto v) { return vmaxq_s32(u, v); }, x, y);
  }
  static I iand(I x, I y) {
    return ieach([](auto u, auto v) { return vandq_s32(u, v); }, x, y);
  }
  static I ior(I x, I y) {
    return ieach([](auto u, auto v) { return vorrq_s32(u, v); }, x, y);
  }
  // The right shifts of NEON take no 0.
  template <int N>
  static I ishl(I x) {
    return ieach([](auto u) { return vshlq_n_s32(u, N); }, x);
  }
  template <int N>
  static I ishr(I x) {
    if constexpr (N == 0)
      return x;
    else
      return ieach(
          [](auto u) { return vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(u), N)); },
          x);
  }
  template <int N>
  static I isar(I x) {
    if constexpr (N == 0)
      return x;
    else
      return ieach([](auto u) { return vshrq_n_s32(u, N); }, x);
  }
  // Integers: any order gives the same bits.
  static int32_t ifold_max(I x) {
    return vmaxvq_s32(vmaxq_s32(vmaxq_s32(x.a, x.b), vmaxq_s32(x.c, x.d)));
  }
  static int32_t ifold_add(I x) {
    return vaddvq_s32(vaddq_s32(vaddq_s32(x.a, x.b), vaddq_s32(x.c, x.d)));
  }

  static F to_float(I x) {
    return feach([](auto u) { return vcvtq_f32_s32(u); }, x);
  }
  static I to_int(F x) {
    return ieach([](auto u) { return vcvtnq_s32_f32(u); }, x);
  }
  static I as_int(F x) {
    return ieach([](auto u) { return vreinterpretq_s32_f32(u); }, x);
  }
  static F as_float(I x) {
    return feach([](auto u) { return vreinterpretq_f32_s32(u); }, x);
  }
  static void store_s8(int8_t* p, I x) {
    const int16x8_t low = vcombine_s16(vmovn_s32(x.a), vmovn_s32(x.b));
    const int16x8_t high = vcombine_s16(vmovn_s32(x.c), vmovn_s32(x.d));
    vst1q_s8(p, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
  }

  static B load_b(const uint8_t* p) {
    return {vld1q_u8(p), vld1q_u8(p + 16), vld1q_u8(p + 32), vld1q_u8(p + 48)};
  }
  static B and_b(B x, uint8_t mask) {
    const uint8x16_t m = vdupq_n_u8(mask);
    return beach([=](auto u) { return vandq_u8(u, m); }, x);
  }
  static B or_b(B x, B y) {
    return beach([](auto u, auto v) { return vorrq_u8(u, v); }, x, y);
  }
  template <int N>
  static B shr_b(B x, uint8_t mask) {
    if constexpr (N == 0)
      return and_b(x, mask);
    else
      return and_b(beach([](auto u) { return vshrq_n_u8(u, N); }, x), mask);
  }
  template <int N>
  static B shl_b(B x, uint8_t mask) {
    return and_b(beach([](auto u) { return vshlq_n_u8(u, N); }, x), mask);
  }
  // Weights at most 127 (kFullU8), so that they are the same number as int8.
  static I dot4_u(I acc, B w, const int8_t* x) { return dot4_s(acc, w, x); }
  static I dot4_s(I acc, B w, const int8_t* x) {
    int32_t four;
    std::memcpy(&four, x, sizeof four);
    const int8x16_t v = vreinterpretq_s8_s32(vdupq_n_s32(four));
    return ieach([=](auto s, auto u) { return vdotq_s32(s, vreinterpretq_s8_u8(u), v); }, acc, w);
  }
  static B lookup(const uint8_t* table, B w) {
    const uint8x16_t t = vld1q_u8(table);
    return beach([=](auto u) { return vqtbl1q_u8(t, u); }, w);
  }
  static I factor16(I scale) { return scale; }
  static I madd16(I acc, I a, I scale) {
    return ieach([](auto s, auto u, auto v) { return vmlaq_s32(s, u, v); }, acc, a, scale);
  }
  static I dot2(I acc, I w, const int16_t* x) {
    const int16_t first = x[0], second = x[1];
    return ieach(
        [=](auto s, auto u) {
          return vmlal_n_s16(vmlal_n_s16(s, vmovn_s32(u), first), vshrn_n_s32(u, 16), second);
        },
        acc, w);
  }
  static inline __attribute__((always_inline)) void prefetch(const void* p) {
    __builtin_prefetch(p, 0, 2);
  }
};

}  // namespace
}  // namespace draftproof
