// Linear kernels of all weight types: equal to the scalar row one row at a time, for tiles
// and tails, typical and extreme blocks; at the integer bounds; and near to what the weights say.
#include <algorithm>
#include <cmath>
#include <string>

#include "cases.h"

namespace draftproof::test {
namespace {

constexpr WeightType kTypes[] = {
    WeightType::kF32,  WeightType::kF16,    WeightType::kBF16,   WeightType::kQ4_0,
    WeightType::kQ4_1, WeightType::kQ5_0,   WeightType::kQ5_1,   WeightType::kQ8_0,
    WeightType::kQ4_K, WeightType::kQ5_K,   WeightType::kQ6_K,   WeightType::kQ2_K,
    WeightType::kQ3_K, WeightType::kIQ4_NL, WeightType::kIQ4_XS, WeightType::kMXFP4};
static_assert(sizeof kTypes / sizeof *kTypes == kNumWeightTypes);
constexpr int kRows = 130;

enum class Profile { kTypical, kExtreme };

const TypeInfo& info_of(WeightType type) { return *type_info(static_cast<int32_t>(type)); }

// Where the float16 scales of a block stand in the file.
std::vector<size_t> half_offsets(WeightType type) {
  switch (type) {
    case WeightType::kQ6_K:
      return {208};
    case WeightType::kQ2_K:
      return {80, 82};
    case WeightType::kQ3_K:
      return {108};
    case WeightType::kMXFP4:
      return {};
    case WeightType::kQ4_1:
    case WeightType::kQ5_1:
    case WeightType::kQ4_K:
    case WeightType::kQ5_K:
      return {0, 2};
    default:
      return {0};
  }
}

// A finite float16 with an exponent field of low .. high, of either sign.
uint16_t half(Random& random, int low, int high) {
  const int exponent = low + random.below(high - low + 1);
  return static_cast<uint16_t>((random.coin() ? 0x8000 : 0) | exponent << 10 | random.below(1024));
}

void fill_float(Random& random, WeightType type, Profile profile, uint8_t* to) {
  const bool extreme = profile == Profile::kExtreme;
  if (type == WeightType::kF16) {  // extreme: denormals too
    const uint16_t word = half(random, extreme ? 0 : 8, extreme ? 30 : 15);
    std::memcpy(to, &word, 2);
    return;
  }
  float value = random.uniform(1.0f);
  if (extreme) value *= random.pick({0x1p-140f, 0x1p-126f, 0x1p-60f, 0.0f, 1.0f, 0x1p40f});
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if (type == WeightType::kBF16)
    std::memcpy(to, reinterpret_cast<uint8_t*>(&bits) + 2, 2);
  else
    std::memcpy(to, &bits, 4);
}

// The tensor as a file has it.
std::vector<uint8_t> source_of(Random& random, WeightType type, Profile profile, int64_t outputs,
                               int64_t inputs) {
  const TypeInfo& t = info_of(type);
  std::vector<uint8_t> out(static_cast<size_t>(outputs * (inputs / t.block_inputs)) *
                           t.source_block_bytes);
  for (size_t at = 0; at < out.size(); at += t.source_block_bytes) {
    uint8_t* block = out.data() + at;
    if (t.form == ActForm::kFloat) {
      fill_float(random, type, profile, block);
      continue;
    }
    // Extreme: whole blocks of one byte, so that every quant and scale stands at an end of its
    // range.
    const int fill = random.pick({0x00, 0xff, 0x80, 0x7f, 0x0f, 0xf0});
    const bool filled = profile == Profile::kExtreme && random.below(4) != 0;
    for (size_t i = 0; i < t.source_block_bytes; ++i)
      block[i] = static_cast<uint8_t>(filled ? fill : random.below(256));
    if (filled && type == WeightType::kQ6_K)
      std::memset(block + 192, random.pick({0x80, 0x7f, 0x00}), 16);
    if (type == WeightType::kMXFP4)  // 2^(e - 128): denormal, small, as usual, great
      block[0] =
          static_cast<uint8_t>(profile == Profile::kExtreme ? random.pick({0, 1, 2, 60, 128, 180})
                                                            : 112 + random.below(12));
    for (const size_t offset : half_offsets(type)) {
      uint16_t d = half(random, 4, 10);
      if (profile == Profile::kExtreme)
        d = random.pick<uint16_t>({0x3c00, 0xbc00, 0x7bff, 0xfbff, 0x0001, 0x83ff, 0x0000, 0x8000});
      std::memcpy(block + offset, &d, 2);
    }
  }
  return out;
}

// Rows of activations in the form that the type multiplies.
struct Act {
  size_t stride;
  Bytes bytes;
  const uint8_t* row(int r) const { return bytes.data() + static_cast<size_t>(r) * stride; }
};

size_t act_bytes(ActForm form, int64_t inputs) {
  const auto n = static_cast<size_t>(inputs);
  switch (form) {
    case ActForm::kBlock32:
      return n / 32 * sizeof(ActBlock32);
    case ActForm::kBlock256:
      return n / 256 * sizeof(ActBlock256);
    default:
      return n * sizeof(float);
  }
}

void put_act(ActForm form, const std::vector<float>& x, uint8_t* to) {
  const Kernels& scalar = scalar_kernels();
  const auto n = static_cast<int64_t>(x.size());
  switch (form) {
    case ActForm::kBlock32:
      scalar.quantize32(x.data(), n, reinterpret_cast<ActBlock32*>(to));
      break;
    case ActForm::kBlock256:
      scalar.quantize256(x.data(), n, reinterpret_cast<ActBlock256*>(to));
      break;
    default:
      std::memcpy(to, x.data(), x.size() * sizeof(float));
  }
}

// Input i of a row as the kernel sees it.
double act_value(ActForm form, const uint8_t* row, int64_t i) {
  switch (form) {
    case ActForm::kBlock32: {
      const auto& b = reinterpret_cast<const ActBlock32*>(row)[i / 32];
      return double{b.d} * b.q[i % 32];
    }
    case ActForm::kBlock256: {
      const auto& b = reinterpret_cast<const ActBlock256*>(row)[i / 256];
      return double{b.d} * b.q[i % 256];
    }
    default:
      return reinterpret_cast<const float*>(row)[i];
  }
}

// Tile counters stand for 8 (float types 6) rows or more, 4, 2, 1. A one-row call is one tile of
// one.
bool counted(const uint64_t (&calls)[kNumTileSizes], int rows) {
  const uint64_t least = 6 * calls[0] + 4 * calls[1] + 2 * calls[2] + calls[3];
  const uint64_t sum = calls[0] + calls[1] + calls[2] + calls[3];
  return sum > 0 && least <= static_cast<uint64_t>(rows) &&
         (rows > 1 || (sum == 1 && calls[3] == 1));
}

struct Shape {
  int64_t inputs, outputs;
  Profile profile;
  bool bias, residual;
};

struct LinearCase {
  WeightType type;
  Shape shape;
  Bytes packed;
  Act act;
  std::vector<float> bias, residual;

  size_t out_stride() const { return static_cast<size_t>(shape.outputs) + 3; }

  // All panels times `rows` rows from `first` on; the gap behind each row stays untouched.
  std::vector<float> run(const Kernels& kernels, int first, int rows, Report* report) const {
    const TypeInfo& t = info_of(type);
    auto out = untouched(static_cast<size_t>(rows) * out_stride());
    const size_t panel_size = panel_bytes(t, shape.inputs);
    for (int64_t p = 0; p < num_panels(t, shape.outputs); ++p) {
      const int64_t base = p * t.panel_outputs, left = shape.outputs - base;
      uint64_t calls[kNumTileSizes] = {};
      PanelArgs a{};
      a.panel = packed.data() + static_cast<size_t>(p) * panel_size;
      a.blocks = shape.inputs / t.block_inputs;
      a.act = act.row(first);
      a.act_stride = act.stride;
      a.rows = rows;
      a.outputs = static_cast<int>(left < t.panel_outputs ? left : t.panel_outputs);
      a.out = out.data() + base;
      a.out_stride = out_stride();
      a.bias = shape.bias ? bias.data() + base : nullptr;
      a.residual_stride = static_cast<size_t>(shape.outputs);
      a.residual = shape.residual
                       ? residual.data() + static_cast<size_t>(first) * a.residual_stride + base
                       : nullptr;
      a.tile_calls = calls;
      kernels.linear[t.index](a);
      if (report != nullptr)
        report->check(counted(calls, rows),
                      "linear/%s: row %s, m %d: tile counters say %d %d %d %d", t.name,
                      kernels.name, rows, static_cast<int>(calls[0]), static_cast<int>(calls[1]),
                      static_cast<int>(calls[2]), static_cast<int>(calls[3]));
    }
    return out;
  }
};

LinearCase make_case(Random& random, WeightType type, const Shape& shape) {
  const TypeInfo& t = info_of(type);
  const auto source = source_of(random, type, shape.profile, shape.outputs, shape.inputs);
  const int64_t panels = num_panels(t, shape.outputs);
  const size_t row_bytes = act_bytes(t.form, shape.inputs), stride = row_bytes + 8;
  const auto outputs = static_cast<size_t>(shape.outputs);
  LinearCase c{type,
               shape,
               Bytes(static_cast<size_t>(panels) * panel_bytes(t, shape.inputs)),
               Act{stride, Bytes((kRows - 1) * stride + row_bytes)},
               activations(random, outputs, 0),
               activations(random, kRows * outputs, 0)};
  pack_panels(type, source.data(), shape.outputs, shape.inputs, c.packed.data(), 0, panels);
  for (int r = 0; r < kRows; ++r)
    put_act(t.form, activations(random, static_cast<size_t>(shape.inputs), r),
            c.act.bytes.data() + static_cast<size_t>(r) * stride);
  return c;
}

// The scalar row against weights and activations in double: a check of layout, not of bits.
void check_meaning(Report& report, const LinearCase& c, const std::vector<float>& out, int rows) {
  const TypeInfo& t = info_of(c.type);
  std::vector<float> w(static_cast<size_t>(c.shape.inputs));
  double worst = 0.0;
  for (int64_t o = 0; o < c.shape.outputs; ++o) {
    unpack_row(c.type, c.packed.data(), c.shape.inputs, o, w.data());
    for (int r = 0; r < rows; ++r) {
      const auto at = static_cast<size_t>(r) * static_cast<size_t>(c.shape.outputs + 3);
      double sum = 0.0, size = 1e-30;
      for (int64_t k = 0; k < c.shape.inputs; ++k) {
        const double product = w[static_cast<size_t>(k)] * act_value(t.form, c.act.row(r), k);
        sum += product;
        size += std::abs(product);
      }
      if (c.shape.bias) sum += c.bias[static_cast<size_t>(o)];
      if (c.shape.residual)
        sum += c.residual[static_cast<size_t>(r) * static_cast<size_t>(c.shape.outputs) +
                          static_cast<size_t>(o)];
      size += std::abs(sum);
      worst = std::max(worst, std::abs(sum - out[at + static_cast<size_t>(o)]) / size);
    }
  }
  report.check(worst < 1e-5, "linear/%s: scalar is %g away from unpack_row", t.name, worst);
}

void test_shape(Report& report, WeightType type, const Shape& shape, bool in_quick) {
  if (report.quick() && !in_quick) return;
  const std::string kernel = std::string("linear/") + info_of(type).name;
  Random random(static_cast<uint64_t>(type) * 1000 + static_cast<uint64_t>(shape.inputs) * 7 +
                static_cast<uint64_t>(shape.outputs) * 2 + (shape.bias ? 1 : 0));
  const LinearCase c = make_case(random, type, shape);
  std::vector<float> want;
  for (int r = 0; r < kRows; ++r) {
    const auto one = c.run(scalar_kernels(), r, 1, nullptr);
    want.insert(want.end(), one.begin(), one.end());
  }
  bool finite = true;
  for (const float x : want) finite = finite && std::isfinite(x);
  report.check(finite, "%s: the test's own inputs overflow", kernel.c_str());
  if (shape.profile == Profile::kTypical) check_meaning(report, c, want, 9);
  for (const int m :
       {1, 2, 3, 7, 8, 17, 4, 5, 6, 9, 10, 11, 12, 13, 14, 15, 16, 31, 32, 33, 64, 130}) {
    const bool quick_m = m == 1 || m == 2 || m == 3 || m == 7 || m == 8 || m == 17;
    if (report.quick() && !quick_m) continue;
    const int first = Random(static_cast<uint64_t>(m)).below(kRows - m + 1);
    const auto from = want.begin() + static_cast<std::ptrdiff_t>(first * c.out_stride());
    const auto to = from + static_cast<std::ptrdiff_t>(static_cast<size_t>(m) * c.out_stride());
    for (const Kernels* row : tested_kernels())
      report.compare(kernel, row->name, in_quick && quick_m, m,
                     words_of(c.run(*row, first, m, &report)), words_of({from, to}));
  }
}

// One block with every factor at its end: the greatest |isum| (and |msum| with it) of the type,
// known beforehand. Scales are 1 and the activations +127 or -127, so the output is the integer.
void test_bound(Report& report, WeightType type, uint8_t fill, float expected) {
  const TypeInfo& t = info_of(type);
  std::vector<uint8_t> source(kLanes * t.source_block_bytes, fill);
  const uint16_t one = 0x3c00;
  for (size_t r = 0; r < kLanes; ++r) {
    uint8_t* block = source.data() + r * t.source_block_bytes;
    if (type == WeightType::kQ6_K) std::memset(block + 192, 0x80, 16);
    if (type == WeightType::kMXFP4) block[0] = 128;
    for (const size_t offset : half_offsets(type)) std::memcpy(block + offset, &one, 2);
  }
  const size_t row_bytes = act_bytes(t.form, t.block_inputs);
  LinearCase c{type,
               Shape{t.block_inputs, kLanes, Profile::kExtreme, false, false},
               Bytes(panel_bytes(t, t.block_inputs)),
               Act{row_bytes, Bytes(kRows * row_bytes)},
               {},
               {}};
  pack_panels(type, source.data(), kLanes, t.block_inputs, c.packed.data(), 0, 1);
  for (int r = 0; r < kRows; ++r)
    put_act(t.form,
            std::vector<float>(static_cast<size_t>(t.block_inputs), r % 2 ? -127.0f : 127.0f),
            c.act.bytes.data() + static_cast<size_t>(r) * row_bytes);
  for (const int m : {1, 2, 4, 8, 16, 130}) {
    if (report.quick() && m > 8) continue;
    auto want = untouched(static_cast<size_t>(m) * c.out_stride());
    for (int r = 0; r < m; ++r)
      for (int o = 0; o < kLanes; ++o)
        want[static_cast<size_t>(r) * c.out_stride() + static_cast<size_t>(o)] =
            r % 2 ? -expected : expected;
    for (const Kernels* row : tested_kernels())
      report.compare(std::string("linear/") + t.name, row->name, m <= 8, m,
                     words_of(c.run(*row, 0, m, &report)), words_of(want));
  }
}

}  // namespace

void test_linear(Report& report) {
  for (const WeightType type : kTypes) {
    const TypeInfo& t = info_of(type);
    const int64_t unit = t.block_inputs == 1 ? 24 : t.block_inputs;
    const int64_t panel = t.panel_outputs;
    test_shape(report, type, {unit, panel + 5, Profile::kTypical, true, true}, true);
    test_shape(report, type, {3 * unit, panel + 1, Profile::kExtreme, false, false}, true);
    test_shape(report, type, {5 * unit, panel, Profile::kTypical, false, true}, false);
    test_shape(report, type, {2 * unit, panel - 1, Profile::kExtreme, true, false}, false);
    test_shape(report, type, {7 * unit, 2 * panel + panel / 2, Profile::kTypical, true, false},
               false);
    test_shape(report, type,
               {unit + (t.block_inputs == 1 ? 9 : 0), 3, Profile::kExtreme, true, true}, false);
    Random random(static_cast<uint64_t>(t.index) + 1);
    for (int i = 0; i < 6; ++i) {
      const int64_t inputs =
          unit * (1 + random.below(9)) + (t.block_inputs == 1 ? random.below(7) : 0);
      const int64_t outputs = 1 + random.below(static_cast<int>(3 * panel));
      const Profile profile = random.coin() ? Profile::kTypical : Profile::kExtreme;
      const bool bias = random.coin(), residual = random.coin();
      test_shape(report, type, {inputs, outputs, profile, bias, residual}, false);
    }
  }
  // |isum| of the type, and -msum (K types) or +msum (Q4_1, Q5_1) where there is a greatest min.
  test_bound(report, WeightType::kQ4_0, 0x00, -32512.0f);
  test_bound(report, WeightType::kQ4_1, 0xff, 60960.0f + 4064.0f);
  test_bound(report, WeightType::kQ5_0, 0x00, -65024.0f);
  test_bound(report, WeightType::kQ5_1, 0xff, 125984.0f + 4064.0f);
  test_bound(report, WeightType::kQ8_0, 0x80, -520192.0f);
  test_bound(report, WeightType::kQ4_K, 0xff, 30723840.0f - 2048256.0f);
  test_bound(report, WeightType::kQ5_K, 0xff, 63495936.0f - 2048256.0f);
  test_bound(report, WeightType::kQ6_K, 0x00, 133169152.0f);
  test_bound(report, WeightType::kQ2_K, 0xff, 1463040.0f - 487680.0f);
  test_bound(report, WeightType::kQ3_K, 0x00, 4161536.0f);
  test_bound(report, WeightType::kQ3_K, 0xff,
             3023616.0f);  // the greatest product before its offset
  test_bound(report, WeightType::kIQ4_NL, 0x00, -516128.0f);
  test_bound(report, WeightType::kIQ4_XS, 0x00, 132128768.0f);
  test_bound(report, WeightType::kMXFP4, 0x77, 48768.0f);
  test_bound(report, WeightType::kMXFP4, 0xff, -48768.0f);
  // Every row has functions of its own: none is the scalar row's under another name. (The amx row
  // has the avx512 row's for float types.)
  const auto& rows = tested_kernels();
  for (size_t i = 0; i < rows.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      for (const WeightType type : kTypes)
        if (rows[i]->name != std::string("amx") || info_of(type).form != ActForm::kFloat)
          report.check(rows[i]->linear[info_of(type).index] != rows[j]->linear[info_of(type).index],
                       "linear/%s: rows %s and %s share a function", info_of(type).name,
                       rows[i]->name, rows[j]->name);
}

}  // namespace draftproof::test
