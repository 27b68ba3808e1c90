// The scalar shim: sixteen-lane vectors as plain arrays. This file is the specification: every
// other shim must give the same bits for every function here. Knows lanes and bytes; knows no
// operation.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "simd/exact_fma.h"
#include "simd/half.h"

namespace draftproof {
namespace {

struct Scalar {
  static constexpr const char* kName = "scalar";
  // How many sixteen-lane accumulators fit in registers: a tuning hint, never a matter of bits.
  static constexpr int kAccumulators = 8;
  static constexpr int kTileRows = 8;  // the most rows that a quantized tile takes at once
  // True if dot4_u accepts weights up to 255; else at most 127.
  static constexpr bool kFullU8 = true;
  // What dot4_s adds too much: kSignedBias * sum(x). Its caller starts the accumulator that much
  // lower.
  static constexpr int kSignedBias = 0;

  struct F {
    float v[16];
  };
  struct I {
    int32_t v[16];
  };
  struct B {
    uint8_t v[64];
  };  // lane r holds bytes 4r .. 4r+3

  template <class Fn>
  static F map(Fn fn) {
    F out;
    for (int i = 0; i < 16; ++i) out.v[i] = fn(i);
    return out;
  }
  template <class Fn>
  static I imap(Fn fn) {
    I out;
    for (int i = 0; i < 16; ++i) out.v[i] = fn(i);
    return out;
  }
  template <class Fn>
  static B bmap(Fn fn) {
    B out;
    for (int i = 0; i < 64; ++i) out.v[i] = static_cast<uint8_t>(fn(i));
    return out;
  }
  static int32_t bits(float x) {
    int32_t b;
    std::memcpy(&b, &x, 4);
    return b;
  }
  static float value(int32_t b) {
    float x;
    std::memcpy(&x, &b, 4);
    return x;
  }

  // Float lanes.
  static F zero() {
    return map([](int) { return 0.0f; });
  }
  static F set1(float x) {
    return map([=](int) { return x; });
  }
  static F load(const float* p) {
    return map([=](int i) { return p[i]; });
  }
  static F load_n(const float* p, int n) {
    return map([=](int i) { return i < n ? p[i] : 0.0f; });
  }
  static void store(float* p, F a) { std::memcpy(p, a.v, sizeof a.v); }
  static void store_n(float* p, F a, int n) { std::memcpy(p, a.v, static_cast<size_t>(n) * 4); }
  static F load_f16(const uint16_t* p) {
    return map([=](int i) { return half_to_float(p[i]); });
  }
  static F load_bf16(const uint16_t* p) {
    return map([=](int i) { return bfloat_to_float(p[i]); });
  }
  static void store_f16(uint16_t* p, F a) {
    for (int i = 0; i < 16; ++i) p[i] = float_to_half(a.v[i]);
  }
  static F add(F a, F b) {
    return map([&](int i) { return a.v[i] + b.v[i]; });
  }
  static F sub(F a, F b) {
    return map([&](int i) { return a.v[i] - b.v[i]; });
  }
  static F mul(F a, F b) {
    return map([&](int i) { return a.v[i] * b.v[i]; });
  }
  static F div(F a, F b) {
    return map([&](int i) { return a.v[i] / b.v[i]; });
  }
  static F fma(F a, F b, F c) {
    return map([&](int i) { return exact_fma(a.v[i], b.v[i], c.v[i]); });
  }
  static F fnma(F a, F b, F c) {  // fma(-a, b, c)
    return map([&](int i) { return exact_fma(-a.v[i], b.v[i], c.v[i]); });
  }
  static F neg(F a) {
    return map([&](int i) { return -a.v[i]; });
  }
  // a > b ? a : b, so that a NaN in either operand gives b.
  static F max(F a, F b) {
    return map([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
  }
  static F min(F a, F b) {
    return map([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
  }
  // a < b ? x : y
  static F select_lt(F a, F b, F x, F y) {
    return map([&](int i) { return a.v[i] < b.v[i] ? x.v[i] : y.v[i]; });
  }
  // Lanes i < n of a; +0 elsewhere.
  static F keep_n(F a, int n) {
    return map([&](int i) { return i < n ? a.v[i] : 0.0f; });
  }
  // The one order of a fold: +8, +4, +2, +1.
  static float fold_add(F a) {
    for (int step = 8; step >= 1; step /= 2)
      for (int i = 0; i < step; ++i) a.v[i] = a.v[i] + a.v[i + step];
    return a.v[0];
  }
  static float fold_max(F a) {
    for (int step = 8; step >= 1; step /= 2)
      for (int i = 0; i < step; ++i) a.v[i] = a.v[i] > a.v[i + step] ? a.v[i] : a.v[i + step];
    return a.v[0];
  }

  // Integer lanes; all arithmetic wraps.
  static I izero() {
    return imap([](int) { return 0; });
  }
  static I iset1(int32_t x) {
    return imap([=](int) { return x; });
  }
  static I iload(const int32_t* p) {
    return imap([=](int i) { return p[i]; });
  }
  static I iload_s8(const int8_t* p) {
    return imap([=](int i) { return int32_t{p[i]}; });
  }
  static void istore(int32_t* p, I a) { std::memcpy(p, a.v, sizeof a.v); }
  static int32_t wrap(int64_t x) { return static_cast<int32_t>(static_cast<uint32_t>(x)); }
  static I iadd(I a, I b) {
    return imap([&](int i) { return wrap(int64_t{a.v[i]} + b.v[i]); });
  }
  static I isub(I a, I b) {
    return imap([&](int i) { return wrap(int64_t{a.v[i]} - b.v[i]); });
  }
  static I imul(I a, I b) {
    return imap([&](int i) { return wrap(int64_t{a.v[i]} * b.v[i]); });
  }
  static I imax(I a, I b) {
    return imap([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
  }
  static I iand(I a, I b) {
    return imap([&](int i) { return a.v[i] & b.v[i]; });
  }
  static I ior(I a, I b) {
    return imap([&](int i) { return a.v[i] | b.v[i]; });
  }
  template <int N>
  static I ishl(I a) {
    return imap([&](int i) { return static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) << N); });
  }
  template <int N>
  static I ishr(I a) {  // logical
    return imap([&](int i) { return static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) >> N); });
  }
  template <int N>
  static I isar(I a) {  // arithmetic
    return imap([&](int i) { return a.v[i] >> N; });
  }
  static int32_t ifold_max(I a) {
    int32_t best = a.v[0];
    for (int i = 1; i < 16; ++i) best = a.v[i] > best ? a.v[i] : best;
    return best;
  }
  static int32_t ifold_add(I a) {
    int64_t sum = 0;
    for (int i = 0; i < 16; ++i) sum += a.v[i];
    return wrap(sum);
  }

  // Between the two.
  static F to_float(I a) {
    return map([&](int i) { return static_cast<float>(a.v[i]); });
  }
  static I to_int(F a) {  // nearest even; meaningful only for values within int32
    return imap([&](int i) {
      const bool fits = a.v[i] > -2147483648.0f && a.v[i] < 2147483648.0f;
      return fits ? static_cast<int32_t>(std::nearbyintf(a.v[i])) : INT32_MIN;
    });
  }
  static I as_int(F a) {
    I out;
    std::memcpy(&out, &a, sizeof out);
    return out;
  }
  static F as_float(I a) {
    F out;
    std::memcpy(&out, &a, sizeof out);
    return out;
  }
  static void store_s8(int8_t* p, I a) {  // values already within int8
    for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(a.v[i]);
  }

  // Bytes.
  static B load_b(const uint8_t* p) {
    B out;
    std::memcpy(out.v, p, 64);
    return out;
  }
  static B and_b(B a, uint8_t mask) {
    return bmap([&](int i) { return a.v[i] & mask; });
  }
  static B or_b(B a, B b) {
    return bmap([&](int i) { return a.v[i] | b.v[i]; });
  }
  template <int N>
  static B shr_b(B a, uint8_t mask) {  // (a >> N) & mask, per byte; mask drops what crosses bytes
    return bmap([&](int i) { return (a.v[i] >> N) & mask; });
  }
  template <int N>
  static B shl_b(B a, uint8_t mask) {
    return bmap([&](int i) { return (a.v[i] << N) & mask; });
  }
  // table[w[i]], 16-byte aligned; w at most 15.
  static B lookup(const uint8_t* table, B w) {
    return bmap([&](int i) { return table[w.v[i]]; });
  }
  // acc[r] += sum over t of w[4r+t] * x[t]; weights unsigned (see kFullU8), x int8.
  static I dot4_u(I acc, B w, const int8_t* x) {
    return imap([&](int r) {
      int32_t sum = acc.v[r];
      for (int t = 0; t < 4; ++t) sum += int32_t{w.v[4 * r + t]} * x[t];
      return sum;
    });
  }
  // The same with signed weights -128..127, plus kSignedBias * sum(x).
  static I dot4_s(I acc, B w, const int8_t* x) {
    return imap([&](int r) {
      int32_t sum = acc.v[r];
      for (int t = 0; t < 4; ++t) sum += int32_t{static_cast<int8_t>(w.v[4 * r + t])} * x[t];
      return sum;
    });
  }
  // acc[r] += lo16(w[r]) * x[0] + hi16(w[r]) * x[1], all int16.
  static I dot2(I acc, I w, const int16_t* x) {
    return imap([&](int r) {
      const int32_t lo = static_cast<int16_t>(w.v[r] & 0xffff), hi = w.v[r] >> 16;
      return acc.v[r] + lo * x[0] + hi * x[1];
    });
  }
  // acc + a * scale where both fit int16; `scale` in the form that factor16 gives.
  static I factor16(I scale) { return scale; }
  static I madd16(I acc, I a, I scale) { return iadd(acc, imul(a, scale)); }
  static void prefetch(const void*) {}
};

}  // namespace
}  // namespace draftproof
