// SuffixIndex for Python: checks arguments, calls. No logic. The contract is _native.pyi.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "suffix_index.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace draftproof {
namespace {

nb::tuple tokens_of(const SuffixDraft& draft) {
  nb::list tokens;
  for (const int32_t t : draft.tokens) tokens.append(t);
  return nb::tuple(tokens);
}

const SuffixIndex& asked(const SuffixIndex& self, const SuffixIndex* of) { return of ? *of : self; }

}  // namespace

void bind_drafting(nb::module_& m) {
  nb::class_<SuffixMatch>(m, "SuffixMatch")
      .def_ro("length", &SuffixMatch::length)
      .def_ro("source", &SuffixMatch::source)
      .def_ro("count", &SuffixMatch::count);

  nb::class_<SuffixDraft>(m, "SuffixDraft")
      .def_prop_ro("tokens", &tokens_of)
      .def_prop_ro("length", [](const SuffixDraft& self) { return self.match.length; })
      .def_prop_ro("source", [](const SuffixDraft& self) { return self.match.source; })
      .def_prop_ro("count", [](const SuffixDraft& self) { return self.match.count; })
      .def_ro("support", &SuffixDraft::support)
      .def_ro("voters", &SuffixDraft::voters);

  nb::class_<SuffixIndex>(m, "SuffixIndex")
      .def(nb::init<>())
      .def(
          "append",
          [](SuffixIndex& self, const std::vector<int32_t>& tokens) {
            nb::gil_scoped_release release;
            self.append(tokens.data(), tokens.size());
          },
          "tokens"_a)
      .def("append_break", &SuffixIndex::append_break)
      .def("truncate", &SuffixIndex::truncate, "end"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("drop_first_run", &SuffixIndex::drop_first_run, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("begin", &SuffixIndex::begin)
      .def_prop_ro("end", &SuffixIndex::end)
      .def_prop_ro("memory_bytes", &SuffixIndex::memory_bytes)
      .def_prop_ro("max_append_updates", &SuffixIndex::max_append_updates)
      .def_prop_ro("max_query_reads", &SuffixIndex::max_query_reads)
      .def_prop_ro_static("bytes_per_token", [](nb::handle) { return SuffixIndex::kBytesPerToken; })
      .def_prop_ro_static("chunk_tokens", [](nb::handle) { return SuffixIndex::kChunkTokens; })
      .def_prop_ro_static("max_tokens", [](nb::handle) { return SuffixIndex::kMaxTokens; })
      .def(
          "longest_match",
          [](const SuffixIndex& self, const SuffixIndex* of) {
            return self.longest_match(asked(self, of));
          },
          "of"_a = nb::none())
      .def(
          "drafts",
          [](const SuffixIndex& self, uint32_t k, const SuffixIndex* of, uint32_t max_candidates) {
            if (max_candidates == 0 || max_candidates > 64)
              throw std::invalid_argument("max_candidates must be 1 .. 64");
            SuffixDrafts out = self.drafts(asked(self, of), k, max_candidates);
            return std::pair(std::move(out.recent), std::move(out.frequent));
          },
          "k"_a, "of"_a = nb::none(), "max_candidates"_a = 16);
}

}  // namespace draftproof
