// Owns: the checks of logit edits and logprobs. A plain program: prints what failed, returns the
// number of failures. Doesn't need Python or a test framework.

#include <array>

#include "../logprobs.h"
#include "../simd/log_spec.h"
#include "sampler_cases.h"

using namespace draftproof;

namespace {

// The definition in logit_edits.h, one id at a time. Empty: the row can't be used.
std::vector<float> edited_by_definition(std::vector<float> row, const LogitEdits& e) {
  const auto n = static_cast<int32_t>(row.size());
  for (int32_t id = 0; id < n; ++id) {
    int total = 0, output = 0;
    for (size_t i = 0; i < e.num_tokens; ++i) {
      total += e.tokens[i] == id;
      output += e.tokens[i] == id && i >= e.num_prompt;
    }
    float& l = row[id];
    if (total > 0) l = l > 0.0f ? l / e.repetition : l * e.repetition;
    if (output > 0) {
      const float product = e.frequency * static_cast<float>(output);
      l = l - product;
      l = l - e.presence;
    }
    for (size_t i = 0; i < e.num_bias; ++i)
      if (e.bias_ids[i] == id) l = l + e.bias[i];
    if (!std::isfinite(l)) return {};
  }
  for (int32_t id = 0; id < n && e.mask != nullptr; ++id)
    if ((e.mask[id / 32] >> (id % 32) & 1u) == 0) row[id] = -kInf;
  std::vector<float> after = row;
  for (size_t i = 0; i < e.num_banned; ++i)
    if (e.banned[i] >= 0 && e.banned[i] < n) after[e.banned[i]] = -kInf;
  const bool left = std::any_of(after.begin(), after.end(), [](float l) { return l > -kInf; });
  return left ? after : row;
}

// Arrays of edits that live as long as the case.
struct EditCase {
  std::vector<int32_t> tokens, bias_ids, banned;
  std::vector<float> bias;
  std::vector<uint32_t> mask;
  LogitEdits edits;

  EditCase(Words& words, int32_t n) {
    const auto id = [&] { return static_cast<int32_t>(words.below(n + 6)) - 3; };
    const auto some = [&](uint32_t most) { return words.below(2) ? words.below(most) : 0u; };
    for (uint32_t i = some(60); i > 0; --i) tokens.push_back(words.below(3) ? id() : n / 2);
    for (uint32_t i = some(20); i > 0; --i) bias_ids.push_back(id());
    for (size_t i = 0; i < bias_ids.size(); ++i)
      bias.push_back(static_cast<float>(words.below(201)) - 100.0f);
    for (uint32_t i = some(12); i > 0; --i) banned.push_back(id());
    const uint32_t density = words.below(4);
    for (int32_t i = 0; i < (n + 31) / 32; ++i) {
      const uint32_t w = words.next();
      mask.push_back(density == 0   ? 0xffffffffu
                     : density == 1 ? w
                     : density == 2 ? w & words.next() & words.next() & words.next()
                                    : (words.below(8) == 0 ? 1u << words.below(32) : 0u));
    }
    edits = {tokens.data(), tokens.size(), words.below(static_cast<uint32_t>(tokens.size()) + 1)};
    edits.repetition = std::array{1.0f, 1.3f, 0.5f, 100.0f}[words.below(4)];
    edits.frequency = std::array{0.0f, 0.7f, -2.0f, 0.1f}[words.below(4)];
    edits.presence = std::array{0.0f, 1.1f, -0.3f, 2.0f}[words.below(4)];
    edits.bias_ids = bias_ids.data();
    edits.bias = bias.data();
    edits.num_bias = bias.size();
    edits.mask = words.below(2) ? mask.data() : nullptr;
    edits.banned = banned.data();
    edits.num_banned = banned.size();
  }
};

void test_edits_against_definition() {
  const int32_t sizes[] = {1, 2, 16, 31, 32, 33, 65, 300, 1025, 2049};
  const float temperatures[] = {0.0f, 0.0f, 0.7f, 1.3f, 1e-6f};
  Words words(4);
  SamplerScratch shared;
  int changed = 0, refused = 0;
  for (int round = 0; round < 6000 && failures < 20; ++round) {
    const int32_t n = sizes[words.below(std::size(sizes))];
    const auto row = make_row(words, n, words.below(5));
    const EditCase c(words, n);
    SamplingParams p;
    p.temperature = temperatures[words.below(std::size(temperatures))];
    p.top_k = words.below(3) ? 0 : 1 + static_cast<int32_t>(words.below(40));
    p.top_p = words.below(3) ? 1.0f : 0.8f;
    p.min_p = words.below(3) ? 0.0f : 0.05f;
    p.seed = words.next();
    p.output_index = words.below(1000);
    const int32_t plain = sample_row(row.data(), n, p, shared);
    p.edits = &c.edits;
    const auto edited = edited_by_definition(row, c.edits);
    const int32_t want = edited.empty() ? -1 : sample_by_definition(edited, p);
    for (const Kernels* kernels : available_kernels()) {
      const int32_t got = draftproof::sample_row(row.data(), n, p, *kernels, shared);
      CHECK(got == want, "%s n %d T %g: %d, not %d", kernels->name, n, p.temperature, got, want);
    }
    changed += want >= 0 && want != plain;
    refused += want < 0;
  }
  CHECK(changed > 1000, "only %d choices were changed", changed);
  CHECK(refused > 50, "only %d rows were refused", refused);
}

void test_edit_borders() {
  SamplerScratch scratch;
  const auto greedy = [&](const std::vector<float>& row, const LogitEdits& e) {
    const SamplingParams p{.edits = &e};
    return sample_row(row.data(), static_cast<int32_t>(row.size()), p, scratch);
  };
  const int32_t tokens[] = {0, 0, 1, 0};
  LogitEdits e{tokens, 4, 2};
  e.repetition = 2.0f;
  CHECK(greedy({3.0f, 1.0f, 1.4f}, e) == 0, "3 / 2 is above 1.4");
  CHECK(greedy({2.7f, 1.0f, 1.4f}, e) == 2, "2.7 / 2 is below");
  CHECK(greedy({-1.0f, -5.0f, -1.9f}, e) == 2, "-1 * 2 is below -1.9");
  e.repetition = 1.0f;
  e.frequency = 0.5f;
  CHECK(greedy({1.4f, 0.0f, 1.0f}, e) == 2, "once in the output, prompt tokens don't count");
  CHECK(greedy({1.6f, 0.0f, 1.0f}, e) == 0, "once");
  const int32_t banned[] = {0, 0, 1};
  const uint32_t mask[] = {3};
  e = {.mask = mask, .banned = banned, .num_banned = 3};
  CHECK(greedy({1.0f, 2.0f, 9.0f}, e) == 1, "bans don't apply where nothing else is left");
  const uint32_t none[] = {8};
  e.mask = none;
  CHECK(greedy({1.0f, 2.0f, 9.0f}, e) == -1, "the mask leaves nothing");
  const int32_t id[] = {1};
  const float bias[] = {100.0f};
  e = {.bias_ids = id, .bias = bias, .num_bias = 1};
  CHECK(greedy({5.0f, 0x1.fffffep127f}, e) == 1, "rounds back");
  CHECK(greedy({5.0f, -0.0f}, e) == 1, "bias");
  e.repetition = 100.0f;
  e.tokens = id;
  e.num_tokens = 1;
  CHECK(greedy({5.0f, -0x1.fffffep127f}, e) == -1, "an overflow is not finite");
  CHECK(greedy({5.0f, kNan}, e) == -1 && greedy({kInf, 1.0f}, e) == -1, "a raw NaN");
}

void test_logprobs() {
  Words words(5);
  SamplerScratch shared;
  for (int round = 0; round < 2000 && failures < 20; ++round) {
    const auto n = static_cast<int32_t>(1 + words.below(3000));
    auto row = make_row(words, n, words.below(4));
    const auto id = static_cast<int32_t>(words.below(n));
    const auto count = static_cast<int32_t>(words.below(21));
    const float m = *std::max_element(row.begin(), row.end());
    float lane[16] = {};
    for (int32_t i = 0; i < n; ++i) lane[i % 16] += exp_f32(row[i] - m);
    for (const int step : {8, 4, 2, 1})
      for (int i = 0; i < step; ++i) lane[i] += lane[i + step];
    const float log_sum = log_f32(lane[0]);
    std::vector<int32_t> order(n);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return row[a] > row[b]; });
    row.resize(n + 3, kNan);  // padding
    for (const Kernels* kernels : available_kernels()) {
      std::vector<int32_t> ids(count);
      std::vector<float> values(count);
      const float got =
          row_logprobs(row.data(), n, id, count, *kernels, shared, ids.data(), values.data());
      CHECK(same_value(got, (row[id] - m) - log_sum), "n %d id %d: %a", n, id, got);
      for (int32_t i = 0; i < count; ++i) {
        const int32_t want = i < n ? order[i] : -1;
        CHECK(ids[i] == want, "place %d: %d, not %d", i, ids[i], want);
        CHECK(same_value(values[i], want < 0 ? -kInf : (row[want] - m) - log_sum), "place %d", i);
      }
    }
  }
  const std::vector<float> bad = {1.0f, kNan, 2.0f}, good = {1.0f, 2.0f};
  int32_t id = 7;
  float value = 0.0f;
  const Kernels& k = scalar_kernels();
  CHECK(std::isnan(row_logprobs(bad.data(), 3, 0, 1, k, shared, &id, &value)) && id == -1, "NaN");
  CHECK(std::isnan(row_logprobs(good.data(), 2, 2, 1, k, shared, &id, &value)), "outside");
  CHECK(std::isnan(row_logprobs(good.data(), 2, -1, 1, k, shared, &id, &value)), "outside");
}

}  // namespace

int main() {
  test_edits_against_definition();
  test_edit_borders();
  test_logprobs();
  std::printf("edits_test: %d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
