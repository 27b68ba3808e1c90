#include "dispatch.h"

#include <stdexcept>

#include "fp_env.h"
#include "simd/exact_fma.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace draftproof {
namespace {

#if defined(DRAFTPROOF_X86)
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}

// Asked of the processor itself: not every compiler knows these names. CPUID 7.0, EDX.
constexpr unsigned kAmxTile = 1u << 24, kAmxInt8 = 1u << 25;
bool has_cpuid7(unsigned edx_bits) {
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & edx_bits) == edx_bits;
}
// Linux lets a process use tile registers once it has asked (ARCH_REQ_XCOMP_PERM, XTILEDATA). That
// holds for all its threads; where the kernel can't or won't, the row isn't there.
bool has_amx() {
#if defined(__linux__)
  return has_avx512() && has_cpuid7(kAmxTile | kAmxInt8) &&
         syscall(SYS_arch_prctl, 0x1023, 18) == 0;
#else
  return false;
#endif
}
#elif defined(DRAFTPROOF_ARM)
bool has_dotprod() { return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0; }
bool has_i8mm() { return has_dotprod() && (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0; }
#endif

std::vector<const Kernels*> find_kernels() {
  std::vector<const Kernels*> rows = {&scalar_kernels()};
#if defined(DRAFTPROOF_X86)
  if (has_avx2()) rows.push_back(&avx2_kernels());
  if (has_avx512()) rows.push_back(&avx512_kernels());
  if (has_amx()) rows.push_back(&amx_kernels());
#elif defined(DRAFTPROOF_ARM)
  if (has_dotprod()) rows.push_back(&neon_kernels());
  if (has_i8mm()) rows.push_back(&neon_i8mm_kernels());
#endif
  return rows;
}

}  // namespace

const std::vector<const Kernels*>& available_kernels() {
  static const std::vector<const Kernels*> rows = find_kernels();
  return rows;
}

const Kernels& kernels_named(const std::string& name) {
  const auto& rows = available_kernels();
  if (name.empty()) return *rows.back();
  std::string known;
  for (const Kernels* k : rows) {
    if (name == k->name) return *k;
    known += (known.empty() ? "" : ", ") + std::string(k->name);
  }
  throw std::invalid_argument("isa '" + name +
                              "' is not available on this machine; choose one of " + known);
}

std::vector<std::pair<std::string, bool>> cpu_features() {
#if defined(DRAFTPROOF_X86)
  return {{"avx2", __builtin_cpu_supports("avx2") != 0},
          {"fma", __builtin_cpu_supports("fma") != 0},
          {"f16c", __builtin_cpu_supports("f16c") != 0},
          {"avx512f", __builtin_cpu_supports("avx512f") != 0},
          {"avx512bw", __builtin_cpu_supports("avx512bw") != 0},
          {"avx512dq", __builtin_cpu_supports("avx512dq") != 0},
          {"avx512vl", __builtin_cpu_supports("avx512vl") != 0},
          {"avx512vnni", __builtin_cpu_supports("avx512vnni") != 0},
          {"amx_tile", has_cpuid7(kAmxTile)},
          {"amx_int8", has_cpuid7(kAmxInt8)}};
#elif defined(DRAFTPROOF_ARM)
  return {{"neon", true}, {"dotprod", has_dotprod()}, {"i8mm", has_i8mm()}};
#endif
}

const char* arithmetic_defect() {
  const FpGuard guard;
  volatile float a = 1.0f + 0x1p-23f, b = a, c = -(1.0f + 0x1p-22f);
  if (a * b + c != 0.0f) return "the compiler fused a*b+c: build with -ffp-contract=off";
  if (exact_fma(a, b, c) != 0x1p-46f) return "the fused multiply-add rounds twice";
  return nullptr;
}

}  // namespace draftproof
