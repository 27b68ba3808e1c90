// The only file that knows Python: checks dtypes and shapes, releases the GIL, calls. No logic.
// The contract is src/draftproof/_native.pyi.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "fp_env.h"
#include "interpolate.h"
#include "player.h"
#include "quantize.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace draftproof {

void bind_drafting(nb::module_& m);  // bindings_drafting.cpp

namespace {

template <class T>
using Array1 = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Array2 = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <class T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> to_numpy(std::vector<T> values) {
  auto* held = new std::vector<T>(std::move(values));
  nb::capsule owner(held, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return {held->data(), {held->size()}, owner};
}

void require(bool ok, const char* what) {
  if (!ok) throw std::invalid_argument(what);
}

KvType kv_type_named(const std::string& name) {
  if (name == "f32") return KvType::kF32;
  if (name == "f16") return KvType::kF16;
  if (name == "bf16") return KvType::kBF16;
  if (name == "q8_0") return KvType::kQ8;
  throw std::invalid_argument("kv_type '" + name + "' is not one of f32, f16, bf16, q8_0");
}

// bytes, memoryview, mmap, numpy: anything that gives a contiguous buffer.
class BytesView {
 public:
  explicit BytesView(nb::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nb::python_error();
  }
  ~BytesView() { PyBuffer_Release(&view_); }
  BytesView(const BytesView&) = delete;
  BytesView& operator=(const BytesView&) = delete;
  const uint8_t* data() const { return static_cast<const uint8_t*>(view_.buf); }
  size_t size() const { return static_cast<size_t>(view_.len); }

 private:
  Py_buffer view_;
};

int add_linear(Weights& self, const std::string& name, int ggml_type, nb::handle data,
               int64_t out_features, int64_t in_features) {
  const BytesView bytes(data);
  nb::gil_scoped_release release;
  return self.add_linear(name, ggml_type, bytes.data(), bytes.size(), out_features, in_features);
}

int add_experts(Weights& self, const std::string& name, int ggml_type, nb::handle data,
                int64_t experts, int64_t out_features, int64_t in_features) {
  const BytesView bytes(data);
  nb::gil_scoped_release release;
  return self.add_experts(name, ggml_type, bytes.data(), bytes.size(), experts, out_features,
                          in_features);
}

nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>> quantize(nb::handle data, int source_type,
                                                      int ggml_type, int64_t rows, int64_t width,
                                                      int threads) {
  const BytesView bytes(data);
  const size_t source_row = quantized_row_bytes(source_type, width);
  const size_t row = quantized_row_bytes(ggml_type, width);
  const bool floats = source_type == 0 || source_type == 1 || source_type == 30;
  require(floats && source_row > 0, "quantize: the source must be rows of F32, F16 or BF16");
  require(row > 0, "quantize: rows of this width can't be written in this type");
  require(rows > 0 && bytes.size() / source_row == static_cast<size_t>(rows) &&
              bytes.size() % source_row == 0,
          "quantize: data must be [rows, width]");
  std::vector<uint8_t> out(static_cast<size_t>(rows) * row);
  int64_t bad;
  {
    nb::gil_scoped_release release;
    ThreadPool pool(checked_threads(threads));
    bad = quantize_rows(source_type, bytes.data(), ggml_type, rows, width, out.data(), pool);
  }
  if (bad >= 0)
    throw std::invalid_argument("row " + std::to_string(bad) +
                                " has a value that isn't finite, or isn't in the new type");
  return to_numpy(std::move(out));
}

std::string digest(const KvCache& self, Array1<int32_t> pages, int64_t length) {
  std::vector<uint8_t> bits;
  {
    nb::gil_scoped_release release;
    bits = self.read(pages.data(), pages.shape(0), length);
  }
  const nb::bytes data(bits.data(), bits.size());
  return nb::cast<std::string>(
      nb::module_::import_("hashlib").attr("sha256")(data).attr("hexdigest")());
}

nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>> forward(
    Player& self, Array1<int32_t> tokens, Array2<int32_t> positions, Array2<int32_t> segments,
    Array1<int32_t> block_tables, Array1<int32_t> logit_rows, nb::object vectors) {
  require(positions.shape(0) == tokens.shape(0) && positions.shape(1) == 3,
          "positions must be [rows, 3]");
  require(segments.shape(1) == 3, "segments must be [n, 3]");
  Batch b{};
  b.tokens = tokens.data();
  b.rows = tokens.shape(0);
  b.positions = positions.data();
  b.segments = reinterpret_cast<const Segment*>(segments.data());
  b.num_segments = segments.shape(0);
  b.block_tables = block_tables.data();
  b.num_pages = block_tables.shape(0);
  b.logit_rows = logit_rows.data();
  b.num_logit_rows = logit_rows.shape(0);
  Array2<float> v;
  if (!vectors.is_none()) {
    require(nb::try_cast(vectors, v, false),
            "vectors must be a C-contiguous float32 array [n, width]");
    require(static_cast<int64_t>(v.shape(1)) == self.vector_width(),
            "vectors must be [n, vector_width of the program]");
    b.vectors = v.data();
    b.num_vectors = v.shape(0);
  }
  std::vector<uint8_t> flags;
  {
    nb::gil_scoped_release release;
    flags = self.forward(b);
  }
  return to_numpy(std::move(flags));
}

// Into columns column .. of the rows of `out`.
void mix(Array2<float> table, Array2<int32_t> indices, Array2<float> weights,
         nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu> out, int64_t column) {
  const size_t rows = indices.shape(0);
  require(indices.shape(1) == 4 && weights.shape(1) == 4 && weights.shape(0) == rows &&
              out.shape(0) == rows,
          "mix_rows: indices, weights [rows, 4] and out [rows, columns] must fit");
  require(column >= 0 && static_cast<size_t>(column) <= out.shape(1) &&
              table.shape(1) <= out.shape(1) - static_cast<size_t>(column),
          "mix_rows: the table's width must fit behind the column");
  for (size_t i = 0; i < 4 * rows; ++i)
    require(indices.data()[i] >= 0 && static_cast<size_t>(indices.data()[i]) < table.shape(0),
            "mix_rows: an index is outside the table");
  nb::gil_scoped_release release;
  mix_rows(table.data(), static_cast<int64_t>(table.shape(1)), indices.data(), weights.data(),
           static_cast<int64_t>(rows), out.data() + column, static_cast<int64_t>(out.shape(1)));
}

struct SamplingColumns {
  Array1<float> temperature;
  Array1<int32_t> top_k;
  Array1<float> top_p, min_p;
  Array1<uint64_t> seed;
  Array1<uint32_t> output_index, choice_index;

  std::vector<SamplingParams> rows() const {
    const size_t n = temperature.shape(0);
    require(top_k.shape(0) == n && top_p.shape(0) == n && min_p.shape(0) == n &&
                seed.shape(0) == n && output_index.shape(0) == n && choice_index.shape(0) == n,
            "sample: all arrays need one entry per marked row");
    std::vector<SamplingParams> out(n);
    for (size_t i = 0; i < n; ++i)
      out[i] = {temperature(i), top_k(i),        top_p(i),        min_p(i),
                seed(i),        output_index(i), choice_index(i), nullptr};
    return out;
  }
};

// The edits of consecutive marked rows of one request. Holds what the rows point to.
struct SegmentEdits {
  size_t first_row, rows, num_prompt, banned_rows;
  Array1<int32_t> tokens, bias_ids, banned;
  Array1<float> penalties, bias;
  Array2<uint32_t> masks;
  std::vector<LogitEdits> of_row;

  SegmentEdits(nb::handle fields, int32_t vocab_size) {
    const nb::tuple t = nb::cast<nb::tuple>(fields);
    require(t.size() == 10, "sample: edits must hold ten fields");
    const bool typed = nb::try_cast(t[0], first_row) && nb::try_cast(t[1], rows) &&
                       nb::try_cast(t[2], tokens, false) && nb::try_cast(t[3], num_prompt) &&
                       nb::try_cast(t[4], penalties, false) &&
                       nb::try_cast(t[5], bias_ids, false) && nb::try_cast(t[6], bias, false) &&
                       nb::try_cast(t[7], banned, false) && nb::try_cast(t[8], banned_rows) &&
                       (t[9].is_none() || nb::try_cast(t[9], masks, false));
    require(typed, "sample: a field of edits has the wrong type");
    const bool masked = !t[9].is_none();
    require(rows >= 1 && tokens.shape(0) + 1 >= rows && tokens.shape(0) + 1 - rows >= num_prompt,
            "sample: edits need the tokens before every row");
    require(penalties.shape(0) == 3, "sample: penalties are repetition, frequency, presence");
    require(bias_ids.shape(0) == bias.shape(0), "sample: one bias per id");
    require(!masked ||
                (masks.shape(0) == rows && 32 * masks.shape(1) >= static_cast<size_t>(vocab_size)),
            "sample: masks must be [rows, words of 32 ids]");
    for (size_t i = 0; i < rows; ++i) {
      LogitEdits e;
      e.tokens = tokens.data();
      e.num_tokens = tokens.shape(0) + 1 - rows + i;
      e.num_prompt = num_prompt;
      e.repetition = penalties(0);
      e.frequency = penalties(1);
      e.presence = penalties(2);
      e.bias_ids = bias_ids.data();
      e.bias = bias.data();
      e.num_bias = bias.shape(0);
      e.mask = masked ? masks.data() + i * masks.shape(1) : nullptr;
      e.banned = banned.data();
      e.num_banned = i < banned_rows ? banned.shape(0) : 0;
      of_row.push_back(e);
    }
  }
};

nb::ndarray<nb::numpy, int32_t, nb::ndim<1>> sample(Player& self, const SamplingColumns& columns,
                                                    int32_t vocab_size, nb::iterable edits) {
  auto params = columns.rows();
  std::vector<SegmentEdits> segments;
  for (nb::handle fields : edits) segments.emplace_back(fields, vocab_size);
  for (const SegmentEdits& segment : segments) {
    require(segment.first_row <= params.size() && segment.rows <= params.size() - segment.first_row,
            "sample: edits must name marked rows");
    for (size_t i = 0; i < segment.rows; ++i)
      params[segment.first_row + i].edits = &segment.of_row[i];
  }
  std::vector<int32_t> ids;
  {
    nb::gil_scoped_release release;
    ids = self.sample(params, vocab_size);
  }
  return to_numpy(std::move(ids));
}

nb::tuple logprobs(Player& self, Array1<int32_t> rows, Array1<int32_t> ids, int32_t top,
                   int32_t vocab_size) {
  require(rows.shape(0) == ids.shape(0), "logprobs: one id per row");
  Player::Logprobs found;
  {
    nb::gil_scoped_release release;
    found = self.logprobs(rows.data(), ids.data(), rows.shape(0), top, vocab_size);
  }
  return nb::make_tuple(to_numpy(std::move(found.chosen)), to_numpy(std::move(found.top_ids)),
                        to_numpy(std::move(found.top_logprobs)));
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "Weights, programs, KV cache, kernels and sampler: numbers in, numbers out.";
  m.attr("ARITHMETIC_VERSION") = 1;

  m.def("isa_rows", [] {
    std::vector<std::string> names;
    for (const Kernels* k : available_kernels()) names.emplace_back(k->name);
    return names;
  });
  m.def("cpu_features", [] {
    std::map<std::string, bool> out;
    for (const auto& [name, present] : cpu_features()) out[name] = present;
    return out;
  });
  m.def("probe_arithmetic", [] {
    if (const char* defect = arithmetic_defect()) throw std::runtime_error(defect);
  });

  m.def("quantize", &quantize, "data"_a, "source_type"_a, "ggml_type"_a, "rows"_a, "width"_a,
        "threads"_a = 1);
  m.def("mix_rows", &mix, "table"_a.noconvert(), "indices"_a.noconvert(), "weights"_a.noconvert(),
        "out"_a.noconvert(), "column"_a = 0);

  nb::class_<Weights>(m, "Weights")
      .def(nb::init<size_t, int>(), "arena_bytes"_a, "threads"_a = 1)
      .def("add_linear", &add_linear, "name"_a, "ggml_type"_a, "data"_a, "out_features"_a,
           "in_features"_a)
      .def("add_experts", &add_experts, "name"_a, "ggml_type"_a, "data"_a, "experts"_a,
           "out_features"_a, "in_features"_a)
      .def(
          "add_vector",
          [](Weights& self, const std::string& name, Array1<float> data) {
            return self.add_vector(name, data.data(), static_cast<int64_t>(data.shape(0)));
          },
          "name"_a, "data"_a.noconvert())
      .def_prop_ro("packed_bytes", &Weights::used)
      .def_static("packed_size", &Weights::packed_size, "ggml_type"_a, "out_features"_a,
                  "in_features"_a, "experts"_a = 1);

  nb::class_<KvCache>(m, "KvCache")
      .def(
          "__init__",
          [](KvCache* self, int layers, int kv_heads, int head_dim, const std::string& kv_type,
             int num_pages) {
            new (self) KvCache(layers, kv_heads, head_dim, kv_type_named(kv_type), num_pages);
          },
          "layers"_a, "kv_heads"_a, "head_dim"_a, "kv_type"_a, "num_pages"_a)
      .def_prop_ro_static("page_positions", [](nb::handle) { return kPagePositions; })
      .def_prop_ro("page_bytes", &KvCache::page_bytes)
      .def_prop_ro("num_pages", &KvCache::num_pages)
      .def("digest", &digest, "pages"_a.noconvert(), "length"_a)
      .def("copy_page", &KvCache::copy_page, "src"_a, "dst"_a);

  nb::class_<Program>(m, "Program")
      .def(nb::init<const Weights&, const KvCache&>(), "weights"_a, "kv"_a, nb::keep_alive<1, 2>(),
           nb::keep_alive<1, 3>())
      .def(
          "buffer",
          [](Program& self, const std::string& name, int64_t width, const std::string& space) {
            require(space == "rows" || space == "logits", "space must be 'rows' or 'logits'");
            return self.buffer(name, width, space == "rows" ? Space::kRows : Space::kLogits);
          },
          "name"_a, "width"_a, "space"_a = "rows")
      .def("embed", &Program::embed, "out"_a, "table"_a)
      .def("rms_norm", &Program::rms_norm, "out"_a, "x"_a, "weight"_a, "eps"_a)
      .def("linear", &Program::linear, "outs"_a, "x"_a, "weights"_a,
           "biases"_a = std::vector<int>{}, "residual"_a = -1)
      .def("swiglu_linear", &Program::swiglu_linear, "out"_a, "x"_a, "gate"_a, "up"_a)
      .def(
          "rope",
          [](Program& self, std::vector<int> xs, int head_dim, Array1<uint64_t> turns,
             Array1<uint8_t> axes, double magnitude) {
            self.rope(std::move(xs), head_dim, {turns.data(), turns.data() + turns.shape(0)},
                      {axes.data(), axes.data() + axes.shape(0)}, magnitude);
          },
          "xs"_a, "head_dim"_a, "turns"_a.noconvert(), "axes"_a.noconvert(), "magnitude"_a = 1.0)
      .def("attention", &Program::attention, "out"_a, "q"_a, "k"_a, "v"_a, "layer"_a,
           "causal"_a = true)
      .def("moe", &Program::moe, "out"_a, "x"_a, "router"_a, "gate"_a, "up"_a, "down"_a, "used"_a,
           "renormalise"_a, "residual"_a = -1)
      .def("vectors", &Program::vectors, "out"_a, "column"_a = 0)
      .def("add_vectors", &Program::add_vectors, "x"_a, "column"_a)
      .def("layer_norm", &Program::layer_norm, "out"_a, "x"_a, "weight"_a, "bias"_a, "eps"_a)
      .def(
          "gelu",
          [](Program& self, int x, const std::string& formula) {
            require(formula == "tanh" || formula == "erf", "formula must be 'tanh' or 'erf'");
            self.gelu(x, formula == "erf");
          },
          "x"_a, "formula"_a)
      .def("join_rows", &Program::join_rows, "out"_a, "x"_a)
      .def_prop_ro("vector_width", &Program::vector_width)
      .def("select_logit_rows", &Program::select_logit_rows, "out"_a, "x"_a)
      .def("hidden", &Program::hidden, "x"_a)
      .def("logits", &Program::logits, "x"_a);

  nb::class_<Player>(m, "Player")
      .def(nb::init<const Program&, int, int, int, const std::string&>(), "program"_a, "max_rows"_a,
           "max_logit_rows"_a, "threads"_a, "isa"_a = "", nb::keep_alive<1, 2>())
      .def_prop_ro("isa", &Player::isa)
      .def_prop_ro("threads", &Player::threads)
      .def_prop_ro("begun_ops", &Player::begun_ops)
      .def_prop_ro("num_ops", &Player::num_ops)
      .def(
          "forward",
          [](Player& self, Array1<int32_t> tokens, Array2<int32_t> positions,
             Array2<int32_t> segments, Array1<int32_t> block_tables, Array1<int32_t> logit_rows,
             nb::object vectors) {
            return forward(self, tokens, positions, segments, block_tables, logit_rows, vectors);
          },
          "tokens"_a.noconvert(), "positions"_a.noconvert(), "segments"_a.noconvert(),
          "block_tables"_a.noconvert(), "logit_rows"_a.noconvert(), "vectors"_a = nb::none())
      .def("hidden",
           [](nb::handle handle) {
             const auto& self = nb::cast<const Player&>(handle);
             return nb::ndarray<nb::numpy, const float, nb::ndim<2>>(
                 self.hidden(), {self.num_logit_rows(), static_cast<size_t>(self.hidden_width())},
                 handle, {static_cast<int64_t>(self.hidden_stride()), 1});
           })
      .def("logits",
           [](nb::handle handle) {
             const auto& self = nb::cast<const Player&>(handle);
             return nb::ndarray<nb::numpy, const float, nb::ndim<2>>(
                 self.logits(0), {self.num_logit_rows(), static_cast<size_t>(self.logits_width())},
                 handle, {static_cast<int64_t>(self.logits_stride()), 1});
           })
      .def(
          "values",
          [](nb::handle handle, int buffer) {
            const auto& self = nb::cast<const Player&>(handle);
            const float* data = self.values(buffer);
            return nb::ndarray<nb::numpy, const float, nb::ndim<2>>(
                data, {self.num_logit_rows(), static_cast<size_t>(self.values_width(buffer))},
                handle, {static_cast<int64_t>(self.values_stride(buffer)), 1});
          },
          "buffer"_a)
      .def(
          "sample",
          [](Player& self, Array1<float> temperature, Array1<int32_t> top_k, Array1<float> top_p,
             Array1<float> min_p, Array1<uint64_t> seed, Array1<uint32_t> output_index,
             Array1<uint32_t> choice_index, int32_t vocab_size, nb::iterable edits) {
            const SamplingColumns columns{temperature, top_k,        top_p,       min_p,
                                          seed,        output_index, choice_index};
            return sample(self, columns, vocab_size, edits);
          },
          "temperature"_a.noconvert(), "top_k"_a.noconvert(), "top_p"_a.noconvert(),
          "min_p"_a.noconvert(), "seed"_a.noconvert(), "output_index"_a.noconvert(),
          "choice_index"_a.noconvert(), "vocab_size"_a, "edits"_a = nb::make_tuple())
      .def("logprobs", &logprobs, "rows"_a.noconvert(), "ids"_a.noconvert(), "top"_a,
           "vocab_size"_a)
      .def("counters", &Player::counters);

  bind_drafting(m);
}

}  // namespace draftproof
