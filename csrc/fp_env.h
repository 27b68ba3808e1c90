// The floating-point environment of the contract: nearest even, no flush-to-zero. A foreign library
// built with -ffast-math sets flush-to-zero for the thread that loads it and threads inherit it, so
// every entry from Python and every worker job holds an FpGuard.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace draftproof {

class FpGuard {
 public:
#if defined(__x86_64__)
  FpGuard() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~FpGuard() { _mm_setcsr(static_cast<unsigned>(saved_)); }
#elif defined(__aarch64__)
  FpGuard() {
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved_));
    __asm__ volatile("msr fpcr, %0" : : "r"(uint64_t{0}));
  }
  ~FpGuard() { __asm__ volatile("msr fpcr, %0" : : "r"(saved_)); }
#else
#error "Draftproof runs on x86-64 and AArch64: elsewhere the floating-point environment is unknown"
#endif
  FpGuard(const FpGuard&) = delete;
  FpGuard& operator=(const FpGuard&) = delete;

 private:
  uint64_t saved_;
};

// nullptr, or what is wrong with the arithmetic of this build: a*b+c fused where it must not be, or
// an fma that rounds twice. No macro reveals either, so it is probed once at start.
const char* arithmetic_defect();

}  // namespace draftproof
