// The tile products of the amx row give the bits of the scalar row, one row at a time: on emulated
// tiles, and the compiled instructions on the processor's tiles or, where it has none, trapped and
// emulated. A plain program; does nothing where there is no AVX-512.
#include <cstdio>
#include <string>
#include <vector>

#include "amx_rows.h"
#include "cases.h"
#include "fp_env.h"
#if defined(__linux__)
#include "tile_trap.h"
#else
#include "emulated_tiles.h"
#endif

namespace draftproof::test {
namespace {

constexpr int kMostRows = 130;

struct TypeCase {
  WeightType type;
  uint8_t bound_fill;  // makes |isum| greatest
  std::vector<size_t> halves;
  int products;  // tile products of a block
};
const TypeCase kTypes[] = {
    {WeightType::kQ4_0, 0x00, {0}, 1},      {WeightType::kQ4_1, 0xff, {0, 2}, 1},
    {WeightType::kQ5_0, 0x00, {0}, 1},      {WeightType::kQ5_1, 0xff, {0, 2}, 1},
    {WeightType::kQ8_0, 0x80, {0}, 1},      {WeightType::kQ4_K, 0xff, {0, 2}, 8},
    {WeightType::kQ5_K, 0xff, {0, 2}, 8},   {WeightType::kQ6_K, 0x00, {208}, 8},
    {WeightType::kQ2_K, 0xff, {80, 82}, 4}, {WeightType::kQ3_K, 0x00, {108}, 4},
    {WeightType::kIQ4_NL, 0x00, {0}, 1},    {WeightType::kIQ4_XS, 0x00, {0}, 8},
    {WeightType::kMXFP4, 0x77, {}, 1}};
static_assert(sizeof kTypes / sizeof *kTypes == kNumWeightTypes - 3);  // all but the float types

enum class Profile { kTypical, kExtreme, kBound };

// Whole blocks of one byte put every quant and scale at an end of its range.
std::vector<uint8_t> source_of(Random& random, const TypeCase& c, Profile profile, size_t blocks) {
  const size_t size = type_info(static_cast<int32_t>(c.type))->source_block_bytes;
  std::vector<uint8_t> out(blocks * size);
  for (size_t at = 0; at < out.size(); at += size) {
    uint8_t* block = out.data() + at;
    int fill = random.pick({0x00, 0xff, 0x80, 0x7f, 0x0f, 0xf0});
    if (profile == Profile::kBound) fill = c.bound_fill;
    const bool filled =
        profile == Profile::kBound || (profile == Profile::kExtreme && random.below(4) != 0);
    for (size_t i = 0; i < size; ++i)
      block[i] = static_cast<uint8_t>(filled ? fill : random.below(256));
    if (filled && c.type == WeightType::kQ6_K)
      std::memset(block + 192, profile == Profile::kBound ? 0x80 : random.pick({0x80, 0x7f}), 16);
    if (c.type == WeightType::kMXFP4)  // the scale, 2^(e - 128)
      block[0] = static_cast<uint8_t>(profile == Profile::kTypical ? 112 + random.below(12)
                                      : profile == Profile::kBound ? 128
                                                                   : random.pick({0, 1, 60, 180}));
    for (const size_t offset : c.halves) {
      auto d = static_cast<uint16_t>((random.coin() ? 0x8000 : 0) | (0x1000 + random.below(8192)));
      if (profile == Profile::kExtreme)
        d = random.pick<uint16_t>({0x3c00, 0xbc00, 0x7bff, 0x0001, 0x83ff, 0x8000});
      if (profile == Profile::kBound) d = 0x3c00;
      std::memcpy(block + offset, &d, 2);
    }
  }
  return out;
}

// One panel of `outputs` outputs and kMostRows rows of activations.
struct Panel {
  const TypeInfo& info;
  int64_t inputs;
  int outputs;
  bool plus;  // with bias and residual
  size_t stride;
  Bytes packed, act;
  std::vector<float> bias, residual;

  size_t out_stride() const { return static_cast<size_t>(outputs) + 3; }

  std::vector<float> run(const Kernels& kernels, int first, int rows,
                         uint64_t (&calls)[kNumTileSizes]) const {
    auto out = untouched(static_cast<size_t>(rows) * out_stride());
    PanelArgs a{};
    a.panel = packed.data();
    a.blocks = inputs / info.block_inputs;
    a.act = act.data() + static_cast<size_t>(first) * stride;
    a.act_stride = stride;
    a.rows = rows;
    a.outputs = outputs;
    a.out = out.data();
    a.out_stride = out_stride();
    a.bias = plus ? bias.data() : nullptr;
    a.residual_stride = static_cast<size_t>(outputs);
    a.residual = plus ? residual.data() + static_cast<size_t>(first) * a.residual_stride : nullptr;
    a.tile_calls = calls;
    kernels.linear[info.index](a);
    return out;
  }
};

Panel make_panel(Random& random, const TypeCase& c, Profile profile, int64_t inputs, int outputs,
                 bool plus) {
  const TypeInfo& info = *type_info(static_cast<int32_t>(c.type));
  const bool of_32 = info.form == ActForm::kBlock32;
  const auto blocks = static_cast<size_t>(inputs / info.block_inputs);
  const size_t row_bytes = blocks * (of_32 ? sizeof(ActBlock32) : sizeof(ActBlock256));
  const size_t stride = row_bytes + 8;
  const auto n = static_cast<size_t>(outputs);
  Panel p{info,
          inputs,
          outputs,
          plus,
          stride,
          Bytes(panel_bytes(info, inputs)),
          Bytes((kMostRows - 1) * stride + row_bytes),
          activations(random, n, 0),
          activations(random, kMostRows * n, 0)};
  const auto source = source_of(random, c, profile, blocks * n);
  pack_panels(c.type, source.data(), outputs, inputs, p.packed.data(), 0, 1);
  for (int r = 0; r < kMostRows; ++r) {
    auto x = activations(random, static_cast<size_t>(inputs), r);
    if (profile == Profile::kBound) x.assign(x.size(), r % 2 ? -127.0f : 127.0f);
    uint8_t* to = p.act.data() + static_cast<size_t>(r) * stride;
    if (of_32)
      scalar_kernels().quantize32(x.data(), inputs, reinterpret_cast<ActBlock32*>(to));
    else
      scalar_kernels().quantize256(x.data(), inputs, reinterpret_cast<ActBlock256*>(to));
  }
  return p;
}

// A row to test and where its tile products are counted (nullptr: by no one).
struct Subject {
  const Kernels& kernels;
  bool every_row;
  uint64_t (*products)();
};

void test_panel(Report& report, const TypeCase& c, const Panel& panel,
                const std::vector<Subject>& subjects, const std::vector<int>& row_counts) {
  std::vector<float> want;
  for (int r = 0; r < kMostRows; ++r) {
    uint64_t calls[kNumTileSizes] = {};
    const auto one = panel.run(scalar_kernels(), r, 1, calls);
    want.insert(want.end(), one.begin(), one.end());
  }
  for (const int m : row_counts) {
    const int first = Random(static_cast<uint64_t>(m)).below(kMostRows - m + 1);
    const auto from = want.begin() + static_cast<std::ptrdiff_t>(first * panel.out_stride());
    const auto to = from + static_cast<std::ptrdiff_t>(static_cast<size_t>(m) * panel.out_stride());
    for (const Subject& s : subjects) {
      const int left = m % 16;
      const bool last = left >= (s.every_row ? 1 : 9);  // less than sixteen rows, on tiles too
      const auto tiles = static_cast<uint64_t>(m / 16 + (last ? 1 : 0));
      const uint64_t before = s.products != nullptr ? s.products() : 0;
      uint64_t calls[kNumTileSizes] = {};
      const auto got = panel.run(s.kernels, first, m, calls);
      report.compare(std::string("amx/") + panel.info.name, s.kernels.name, false, m, words_of(got),
                     words_of({from, to}));
      const uint64_t vectors = calls[1] + calls[2] + calls[3];
      report.check(calls[0] == tiles + (!last && left == 8 ? 1 : 0) &&
                       (vectors > 0) == (!last && left % 8 != 0),
                   "%s: row %s, m %d: wrong tile counters", panel.info.name, s.kernels.name, m);
      if (s.products == nullptr) continue;
      const uint64_t blocks = static_cast<uint64_t>(panel.inputs / panel.info.block_inputs);
      report.check(s.products() - before == tiles * blocks * static_cast<uint64_t>(c.products),
                   "%s: row %s, m %d: %d tile products", panel.info.name, s.kernels.name, m,
                   static_cast<int>(s.products() - before));
    }
  }
}

void test_products(Report& report, const std::vector<Subject>& subjects) {
  std::vector<int> every, some = {1, 9, 15, 16, 17, 24, 25, 33, 40};
  for (int m = 1; m <= 40; ++m) every.push_back(m);
  for (const int m : {64, 79, 80, 121, 130}) every.push_back(m);
  for (const TypeCase& c : kTypes) {
    Random random(static_cast<uint64_t>(c.type) + 1);
    const int64_t unit = type_info(static_cast<int32_t>(c.type))->block_inputs;
    const auto test = [&](Profile profile, int64_t inputs, int outputs, bool plus,
                          const std::vector<int>& row_counts) {
      test_panel(report, c, make_panel(random, c, profile, inputs, outputs, plus), subjects,
                 row_counts);
    };
    test(Profile::kTypical, unit, 16, false, every);
    test(Profile::kExtreme, unit, 5, true, every);
    test(Profile::kBound, unit, 16, false, some);
    test(Profile::kTypical, 2 * unit, 11, true, some);
    test(Profile::kExtreme, 3 * unit, 16, false, every);
    test(Profile::kTypical, 5 * unit, 16, true, some);
    test(Profile::kExtreme, 1536, 16, false, {9, 16, 33});
    test(Profile::kTypical, 8960, 16, false, {13, 32});
  }
}

// The emulator against the definition: C[m][n] + sum of A[m][k] * B[k][n], in 64 bits.
void test_emulator(Report& report) {
  Random random(7);
  for (int round = 0; round < 200; ++round) {
    const int rows = 1 + random.below(16), depth = 4 * (1 + random.below(16));
    const int columns = 1 + random.below(16);
    const bool a_signed = random.coin(), b_signed = random.coin();
    const size_t stride = 64 + static_cast<size_t>(random.below(3)) * 8;
    std::vector<uint8_t> a(16 * stride), b(16 * stride), c(16 * stride), got(16 * stride, 0xee);
    for (auto* bytes : {&a, &b, &c})
      for (uint8_t& v : *bytes)
        v = static_cast<uint8_t>(round % 4 == 0 ? random.pick({0x80, 0x7f, 0xff})
                                                : random.below(256));
    uint8_t config[64] = {1};
    const int shape[3][2] = {{rows, 4 * columns}, {rows, depth}, {depth / 4, 4 * columns}};
    for (int t = 0; t < 3; ++t) {
      config[48 + t] = static_cast<uint8_t>(shape[t][0]);
      config[16 + 2 * t] = static_cast<uint8_t>(shape[t][1]);
    }
    TileFile file;
    file.configure(config);
    file.load(0, c.data(), static_cast<int64_t>(stride));
    file.load(1, a.data(), static_cast<int64_t>(stride));
    file.load(2, b.data(), static_cast<int64_t>(stride));
    file.multiply(0, 1, 2, a_signed, b_signed);
    file.store(0, got.data(), static_cast<int64_t>(stride));
    bool good = file.faults == 0 && file.products == 1;
    const auto number = [](uint8_t v, bool is_signed) -> int64_t {
      return is_signed && v >= 128 ? v - 256 : v;
    };
    std::vector<uint8_t> want(16 * stride, 0xee);
    for (size_t m = 0; m < static_cast<size_t>(rows); ++m)
      for (size_t n = 0; n < static_cast<size_t>(columns); ++n) {
        uint32_t start;
        std::memcpy(&start, &c[m * stride + 4 * n], 4);
        int64_t sum = start;
        for (size_t k = 0; k < static_cast<size_t>(depth); ++k)
          sum += number(a[m * stride + k], a_signed) *
                 number(b[k / 4 * stride + 4 * n + k % 4], b_signed);
        const auto low = static_cast<uint32_t>(sum);
        std::memcpy(&want[m * stride + 4 * n], &low, 4);
      }
    good = good && got == want;
    report.check(good, "the emulated product is wrong in round %d", round);
    file.multiply(0, 1, 3, a_signed, b_signed);  // tile 3 has no shape
    report.check(file.faults == 1, "a tile without a shape can be used");
  }
}

bool has_row(const char* name) {
  for (const Kernels* k : available_kernels())
    if (std::string(name) == k->name) return true;
  return false;
}

bool has_feature(const char* name) {
  for (const auto& [feature, there] : cpu_features())
    if (feature == name) return there;
  return false;
}

}  // namespace
}  // namespace draftproof::test

int main() {
  using namespace draftproof;
  using namespace draftproof::test;
  const FpGuard guard;
  std::setvbuf(stdout, nullptr, _IOLBF, 4096);  // what was found before a crash is seen
  Report report(false);
  test_emulator(report);
  if (!has_row("avx512")) {
    std::printf("no AVX-512 on this machine: the amx row was not tested\n");
  } else {
    std::vector<Subject> subjects;
    for (const bool every_row : {false, true})
      subjects.push_back({emulated_amx(every_row), every_row, emulated_products});
    if (has_row("amx")) {
      std::printf("the amx row runs on this machine's tiles\n");
      subjects.push_back({kernels_named("amx"), false, nullptr});
      subjects.push_back({hardware_amx_every_row(), true, nullptr});
      test_products(report, subjects);
    } else if (has_feature("amx_tile")) {
      std::printf("tiles are there but not permitted: their instructions were not tested\n");
      test_products(report, subjects);
    } else {
#if defined(__linux__)
      std::printf("no tiles on this machine: their instructions are trapped and emulated\n");
      const TileTrap trap;
      subjects.push_back({hardware_amx_every_row(), true, [] { return TileTrap::file.products; }});
      test_products(report, subjects);
      report.check(TileTrap::file.faults == 0, "the instructions would fault");
#else
      std::printf("no tiles on this machine: their instructions were not tested\n");
      test_products(report, subjects);
#endif
    }
    std::vector<std::string> names;
    for (const Subject& s : subjects) names.push_back(s.kernels.name);
    report.finish(names, "");
    report.check(emulated_faults() == 0, "the emulated tiles were used wrongly");
  }
  std::printf("%d passed, %d failed\n", report.passed(), report.failed());
  return report.failed() == 0 ? 0 : 1;
}
