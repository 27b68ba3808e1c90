// Every kernel of every row of the dispatch table gives the bits of the scalar row, one row at a
// time, and of the golden file. A plain program; knows the command line, the cases are in
// *_cases.cpp.
//
//   kernels_test [--quick] [--golden FILE] [--expect ROW,ROW...]   exit code 1 on any difference
//   kernels_test --write FILE                                      makes the golden file anew
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "cases.h"
#include "fp_env.h"

namespace {

using namespace draftproof;

int usage() {
  std::printf("kernels_test [--quick] [--golden FILE] [--write FILE] [--expect ROW,ROW...]\n");
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  bool quick = false;
  std::string golden, write, expect;
#if defined(DRAFTPROOF_GOLDEN)
  golden = DRAFTPROOF_GOLDEN;
#endif
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--quick") {
      quick = true;
    } else if (i + 1 < argc && option == "--golden") {
      golden = argv[++i];
    } else if (i + 1 < argc && option == "--write") {
      write = argv[++i];
    } else if (i + 1 < argc && option == "--expect") {
      expect = argv[++i];
    } else {
      return usage();
    }
  }
  if (!write.empty() && quick) return usage();  // the file has the digests of the whole run

  std::setvbuf(stdout, nullptr, _IOLBF, 4096);  // what was found before a crash is seen
  const FpGuard guard;
  test::Report report(quick);
  const char* defect = arithmetic_defect();
  report.check(defect == nullptr, "arithmetic: %s", defect != nullptr ? defect : "");

  std::vector<std::string> rows;
  std::string names;
  for (const Kernels* row : test::tested_kernels()) {
    rows.push_back(row->name);
    if (rows.size() <= available_kernels().size())
      names += (names.empty() ? "" : ",") + rows.back();
  }
  std::printf("rows: %s%s%s\n", names.c_str(),
              rows.size() > available_kernels().size() ? " and one more form of the last" : "",
              quick ? " (quick)" : "");
  if (!expect.empty())
    report.check(names == expect, "rows are %s, expected %s", names.c_str(), expect.c_str());

  test::test_linear(report);
  test::test_rows(report);
  test::test_attention(report);
  test::test_rope_table(report);
  report.finish(rows, write.empty() ? golden : "");

  if (!write.empty()) {
    const bool written = report.failed() == 0 && report.write(write);
    report.check(written, "%s was not written", write.c_str());
  }
  std::printf("%d passed, %d failed\n", report.passed(), report.failed());
  return report.failed() == 0 ? 0 : 1;
}
