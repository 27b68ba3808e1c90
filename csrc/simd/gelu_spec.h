// Owns: both GELU functions, arithmetic version 1: constants and order of operations. Every step is
// one float32 operation rounded to nearest even; "fma" rounds once; exp is that of exp_spec.h.
//
// By the tanh formula, 0.5 x (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3), which is
// x / (1 + exp(-2u)):
//   1. t = fma(x * x, kGeluCubic, 1)
//   2. e = exp((x * kGeluSlope) * t)                            (kGeluSlope = -2 sqrt(2/pi))
//   3. result = x / (1 + e)
//
// Exactly, x Phi(x), with Phi the normal distribution:
//   1. z = min(|x|, kGeluFar)
//   2. near: u = x * x; p = kGeluNear[0]; p = fma(p, u, kGeluNear[1]); ...;
//      phi = fma(x, p, 0.5)
//   3. far: s = fma(z, 0.25, -1); p = kGeluTail[0]; p = fma(p, s, kGeluTail[1]); ...; h = exp(-p);
//      phi = x < 0 ? h : 1 - h
//   4. result = x * (z < kGeluNearEnd ? phi of near : phi of far)
#pragma once

namespace draftproof {

constexpr float kGeluCubic = 0.044715f;
constexpr float kGeluSlope = -0x1.988454p+0f;

constexpr float kGeluNearEnd = 1.25f;
constexpr float kGeluFar = 8.0f;  // Phi(-8) < 1e-15

// (Phi(x) - 1/2) / x in x^2 on |x| < 1.25, highest power first: near minimax, 6e-11.
constexpr int kGeluNearDegree = 6;
constexpr float kGeluNear[kGeluNearDegree + 1] = {
    0x1.f5929ep-22f, -0x1.2e6c1ap-17f, 0x1.e21b16p-14f, -0x1.372bf6p-10f,
    0x1.46cf76p-7f,  -0x1.105834p-4f,  0x1.988454p-2f};

// -log(Phi(-z)) in s = z/4 - 1 on 1.25 <= z <= 8, highest power first: near minimax, 3e-9 at 1.25.
constexpr int kGeluTailDegree = 11;
constexpr float kGeluTail[kGeluTailDegree + 1] = {
    -0x1.dd5f40p-12f, 0x1.1c5948p-11f, 0x1.c3fc40p-10f, -0x1.85935ep-8f,
    0x1.a19276p-7f,   -0x1.b52d88p-6f, 0x1.b4e9fep-5f,  -0x1.9f8218p-4f,
    0x1.86145ep-3f,   0x1.e81a8ap+2f,  0x1.0e705ap+4f,  0x1.4b85f4p+3f};

}  // namespace draftproof
