// Owns: the checks of the sampler and of the scalar arithmetic it stands on. A plain program:
// prints what failed, returns the number of failures. Doesn't need Python or a test framework.

#include "../sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>
#include <vector>

#include "../philox.h"
#include "../simd/exact_fma.h"
#include "../simd/exp_spec.h"
#include "../simd/log_spec.h"
#include "sampler_cases.h"

using namespace draftproof;

namespace {

// FNV-1a over the bits of test_fixed_answers.
constexpr uint32_t kExpHash = 0x3f69aae4, kLogHash = 0x261fa382, kTokenHash = 0x86571950;
void expect_fma(float a, float b, float c) {
  const float got = exact_fma(a, b, c), want = std::fma(a, b, c);
  CHECK(same_value(got, want), "fma(%a, %a, %a) = %a, not %a", a, b, c, got, want);
}

void test_exact_fma() {
  const float special[] = {0.0f,
                           -0.0f,
                           1.0f,
                           -1.0f,
                           0x1p-126f,
                           -0x1p-126f,
                           0x1p-149f,
                           -0x1p-149f,
                           0x1.fffffep-127f,
                           0x1.fffffep127f,
                           -0x1.fffffep127f,
                           0x1.000002p0f,
                           0x1.fffffep-1f,
                           0x1p-24f,
                           0x1p-25f,
                           kInf,
                           -kInf,
                           kNan};
  for (const float a : special)
    for (const float b : special)
      for (const float c : special) expect_fma(a, b, c);
  Words words(1);
  for (int i = 0; i < 2'500'000 && failures < 20; ++i) {
    expect_fma(words.finite(), words.finite(), words.finite());
    const float a = words.near(0, 3), b = words.near(0, 3);
    // Cancelling: c is the rounded product, or a few of its last places away.
    const float p = -(a * b);
    expect_fma(a, b, std::bit_cast<float>(std::bit_cast<uint32_t>(p) + words.below(5) - 2));
    // The exact sum is a hair from a midpoint: rounding twice gets half of them wrong.
    const float k = static_cast<float>(words.below(64)) * 0x1p-23f;
    const float half = words.below(2) != 0 ? 0x1p-24f : -0x1p-24f;
    expect_fma(1.0f + k, half * (1.0f - k), words.near(0, 0));
    // The same a hair from the midpoint of two denormals.
    expect_fma((1.0f + k) * 0x1p-75f, half * 0x1p-51f * (1.0f - k),
               std::bit_cast<float>(words.below(1 << 23)));
    // Denormal results and operands.
    expect_fma(words.near(-70, 8), words.near(-70, 8), words.near(-145, 30));
  }
  // Just below the midpoint of 1 + 2^-23 and 1 + 2^-22; rounding twice ties to the latter.
  const float odd = 1.0f + 0x1p-23f;
  CHECK(exact_fma(odd, 0x1p-24f * (1.0f - 0x1p-23f), odd) == odd, "below the midpoint");
}

double ulps(float got, double want) {
  int e = 0;
  std::frexp(want, &e);
  return std::fabs(static_cast<double>(got) - want) / std::ldexp(1.0, e - 24);
}

void test_exp_and_log() {
  double worst_exp = 0.0, worst_log = 0.0;
  for (uint64_t b = 0; b <= 0xffffffffu; b += 997) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(b));
    if (x >= kExpLo && x <= kExpHi) {
      worst_exp = std::max(worst_exp, ulps(exp_f32(x), std::exp(static_cast<double>(x))));
    }
    if (x > 0.0f && x < kInf && x != 1.0f) {
      worst_log = std::max(worst_log, ulps(log_f32(x), std::log(static_cast<double>(x))));
    }
  }
  CHECK(worst_exp <= 1.01 && worst_exp > 0.4, "exp is off by %g ulp", worst_exp);
  CHECK(worst_log <= 1.0 && worst_log > 0.4, "log is off by %g ulp", worst_log);
  CHECK(exp_f32(0.0f) == 1.0f && exp_f32(-0.0f) == 1.0f, "exp(0) is not 1");
  CHECK(std::bit_cast<uint32_t>(exp_f32(std::nextafter(-69.0f, -70.0f))) == 0, "cut-off");
  CHECK(std::bit_cast<uint32_t>(exp_f32(-kInf)) == 0, "exp(-inf)");
  CHECK(exp_f32(-69.0f) >= 0x1p-100f, "exp(-69) = %a", exp_f32(-69.0f));
  CHECK(exp_f32(kInf) == exp_f32(88.0f) && std::isfinite(exp_f32(88.0f)), "upper clamp");
  CHECK(std::isnan(exp_f32(kNan)), "exp(NaN)");
  CHECK(std::bit_cast<uint32_t>(log_f32(1.0f)) == 0, "log(1) is not +0");
  CHECK(log_f32(0.0f) == -kInf && log_f32(kInf) == kInf, "log at the ends");
  CHECK(std::isnan(log_f32(-1.0f)) && std::isnan(log_f32(kNan)), "log outside its domain");
}

void test_philox() {
  // Known answers published with Random123 (kat_vectors, philox4x32 10).
  CHECK((philox_4x32_10({0, 0, 0, 0}, {0, 0}) ==
         PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}),
        "zeros");
  constexpr uint32_t f = 0xffffffff;
  CHECK((philox_4x32_10({f, f, f, f}, {f, f}) ==
         PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}),
        "ones");
  CHECK(
      (philox_4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
       PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}),
      "pi");
  CHECK(sampling_uniform(0, 0, 0) == static_cast<float>(0x6627e8) * 0x1p-24f, "u from word 0");
  CHECK(sampling_uniform(0x299f31d0a4093822u, 7, 9) ==
            static_cast<float>(philox_4x32_10({7, 9, 0, 0}, {0xa4093822, 0x299f31d0})[0] >> 8) *
                0x1p-24f,
        "key and counter layout");
}

void test_against_definition() {
  const int32_t sizes[] = {1, 2, 15, 16, 17, 63, 64, 65, 127, 1000, 1023, 1024, 1025, 2049, 5003};
  const int32_t top_ks[] = {0, 1, 2, 20, 64, 300, 1 << 30};
  const float top_ps[] = {1.0f, 0.999999f, 0.95f, 0.5f, 0.01f, 0.0f};
  const float min_ps[] = {0.0f, 0.0f, 1e-6f, 0.05f, 0.9f, 1.0f};
  const float temperatures[] = {0.0f, 0.7f, 1.0f, 1.3f, 0.05f, 30.0f, 1e-30f};
  Words words(2);
  SamplerScratch shared;
  int distinct_from_greedy = 0;
  for (int round = 0; round < 12000 && failures < 20; ++round) {
    const int32_t n = sizes[words.below(std::size(sizes))];
    const auto row = make_row(words, n, words.below(5));
    SamplingParams p;
    p.temperature = temperatures[words.below(std::size(temperatures))];
    p.top_k = top_ks[words.below(std::size(top_ks))];
    p.top_p = top_ps[words.below(std::size(top_ps))];
    p.min_p = min_ps[words.below(std::size(min_ps))];
    p.seed = (static_cast<uint64_t>(words.next()) << 32) | words.next();
    p.output_index = words.below(1000);
    p.choice_index = words.below(4);
    const int32_t want = sample_by_definition(row, p);
    const int32_t got = sample_row(row.data(), n, p, shared);
    SamplerScratch fresh;
    CHECK(got == want, "n %d T %g k %d p %g min_p %g seed %llu: %d, not %d", n, p.temperature,
          p.top_k, p.top_p, p.min_p, static_cast<unsigned long long>(p.seed), got, want);
    CHECK(sample_row(row.data(), n, p, fresh) == got, "the scratch's past changed the token");
    distinct_from_greedy += got != argmax_row(row.data(), n);
  }
  CHECK(distinct_from_greedy > 1500, "only %d draws differ from greedy", distinct_from_greedy);
}

void test_greedy_and_errors() {
  SamplerScratch scratch;
  Words words(3);
  for (const int32_t n : {1, 16, 63, 64, 65, 200, 1025}) {
    std::vector<float> row(n + 8, kNan);  // padding after the vocabulary is never looked at
    for (int32_t i = 0; i < n; ++i) row[i] = words.unit() - 2.0f;
    for (int32_t at = 0; at < n; ++at) {
      const float kept = row[at];
      row[at] = 0.0f;
      CHECK(argmax_row(row.data(), n) == at, "n %d, largest at %d", n, at);
      for (const float bad : {kNan, kInf, -kInf, -kNan}) {
        row[at] = bad;
        CHECK(argmax_row(row.data(), n) == -1, "n %d: %g at %d not seen", n, bad, at);
        for (const float temperature : {0.0f, 1.0f}) {
          CHECK(sample_row(row.data(), n, {.temperature = temperature}, scratch) == -1,
                "n %d T %g: %g at %d not seen", n, temperature, bad, at);
        }
      }
      row[at] = kept;
    }
    const int32_t low = static_cast<int32_t>(words.below(n)), high = n - 1;
    row[low] = -0.0f;
    row[high] = 0.0f;
    CHECK(argmax_row(row.data(), n) == low, "the zeros tie, the lowest id wins");
    CHECK(sample_row(row.data(), n, {.temperature = 0.8f, .top_k = 1}, scratch) == low, "top_k 1");
    CHECK(sample_row(row.data(), n, {.temperature = 0.8f, .top_p = 0.0f}, scratch) == low,
          "top_p 0");
  }
  CHECK(argmax_row(nullptr, 0) == -1, "empty row");
  CHECK(sample_row(nullptr, 0, {.temperature = 1.0f}, scratch) == -1, "empty row");
}

// The frequencies are those of the softmax (z-scores against a double reference).
void test_frequencies() {
  const std::vector<float> row = {0.0f, 1.0f, 2.0f, -1.0f, 2.0f, 0.5f, -8.0f, 1.5f};
  constexpr int kDraws = 200'000;
  SamplerScratch scratch;
  for (const bool truncated : {false, true}) {
    SamplingParams p{.temperature = 0.8f, .top_k = truncated ? 4 : 0, .seed = 11};
    std::vector<double> want(row.size()), count(row.size());
    double total = 0;
    for (size_t i = 0; i < row.size(); ++i) {
      want[i] = truncated && row[i] < 1.0f ? 0.0 : std::exp(row[i] / 0.8);
      total += want[i];
    }
    for (int i = 0; i < kDraws; ++i) {
      p.output_index = static_cast<uint32_t>(i);
      count[sample_row(row.data(), static_cast<int32_t>(row.size()), p, scratch)] += 1;
    }
    for (size_t i = 0; i < row.size(); ++i) {
      const double prob = want[i] / total, sd = std::sqrt(prob * (1 - prob) * kDraws);
      CHECK(std::fabs(count[i] - prob * kDraws) <= 4.5 * sd, "token %zu: %g draws, not %g", i,
            count[i], prob * kDraws);
    }
  }
}

// Draws that fall exactly on a border. The output indices were found by search for seed 3.
void test_borders() {
  constexpr uint32_t kZero = 4595281, kHalf = 35995347, kNearOne = 457284;
  CHECK(sampling_uniform(3, kZero, 0) == 0.0f, "u");
  CHECK(sampling_uniform(3, kHalf, 0) == 0.5f, "u");
  CHECK(sampling_uniform(3, kNearOne, 0) == 1.0f - 17 * 0x1p-24f, "u");
  SamplerScratch scratch;
  const auto sample = [&](const std::vector<float>& row, uint32_t output_index, int32_t top_k) {
    const SamplingParams p{
        .temperature = 1.0f, .top_k = top_k, .seed = 3, .output_index = output_index};
    const int32_t got = sample_row(row.data(), static_cast<int32_t>(row.size()), p, scratch);
    CHECK(got == sample_by_definition(row, p), "not the definition's token");
    return got;
  };
  CHECK(sample({-1000.0f, 0.0f, 0.0f}, kZero, 0) == 1, "weight 0 is never drawn");
  CHECK(sample({1.0f, 1.0f, 0.0f}, kHalf, 2) == 1, "a running sum equal to the target goes on");
  CHECK(sample({1.0f, 1.0f, 1.0f, 1.0f}, kHalf, 0) == 2, "same inside a block");
  CHECK(sample(std::vector<float>(2048, 0.0f), kHalf, 0) == 1024, "same at the end of a block");
  // One by one the small weights vanish beside the 1, lane by lane they don't: the block's sum is
  // past the target, the walk never is.
  std::vector<float> row(1024, -1000.0f);
  std::fill(row.begin() + 1, row.begin() + 960, -16.8f);
  row[0] = 0.0f;
  CHECK(sample(row, kNearOne, 0) == 959, "the last token with a weight");
  // The walk starts a block without what the lanes had kept: the length of the block shows.
  std::fill(row.begin() + 512, row.begin() + 960, -15.5f);
  CHECK(sample(row, kNearOne, 0) > 900, "blocks have 1024 ids");
}

// Fixed answers: the definition can't drift with compiler, flags or CPU without being seen here.
void test_fixed_answers() {
  uint32_t hash = 2166136261u;
  const auto mix = [&](uint32_t v) { hash = (hash ^ v) * 16777619u; };
  for (int i = 0; i < 20000; ++i) mix(std::bit_cast<uint32_t>(exp_f32(-70.0f + 0.0079f * i)));
  CHECK(hash == kExpHash, "exp hash %#x", hash);
  hash = 2166136261u;
  for (int i = 1; i < 20000; ++i) mix(std::bit_cast<uint32_t>(log_f32(0.0079f * i)));
  CHECK(hash == kLogHash, "log hash %#x", hash);
  hash = 2166136261u;
  std::vector<float> row(3000);
  for (uint32_t i = 0; i < row.size(); ++i) row[i] = 16.0f * sampling_uniform(1, i, 0) - 8.0f;
  SamplerScratch scratch;
  for (uint32_t i = 0; i < 64; ++i) {
    for (SamplingParams p : {SamplingParams{.temperature = 0.7f, .top_k = 20, .top_p = 0.95f},
                             SamplingParams{.temperature = 1.0f, .top_p = 0.9f},
                             SamplingParams{.temperature = 1.0f, .min_p = 0.1f},
                             SamplingParams{.temperature = 1.0f}}) {
      p.seed = 42;
      p.output_index = i;
      mix(static_cast<uint32_t>(sample_row(row.data(), 3000, p, scratch)));
    }
  }
  CHECK(hash == kTokenHash, "token hash %#x", hash);
}

}  // namespace

int main() {
  test_exact_fma();
  test_exp_and_log();
  test_philox();
  test_greedy_and_errors();
  test_against_definition();
  test_frequencies();
  test_borders();
  test_fixed_answers();
  std::printf("sampler_test: %d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
