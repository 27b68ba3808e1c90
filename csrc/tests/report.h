// What the kernel test counts and remembers: checks, one digest per kernel and table row, the
// golden file. Knows no kernel.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace draftproof::test {

// splitmix64: integers only, so the same inputs on every machine and library.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  int below(int n) { return static_cast<int>((next() >> 33) % static_cast<uint64_t>(n)); }
  bool coin() { return (next() >> 63) != 0; }
  // -scale .. scale, of 24 bits.
  float uniform(float scale) {
    const auto n = static_cast<int32_t>(next() >> 39) - (1 << 24);
    return static_cast<float>(n) * 0x1p-24f * scale;
  }
  template <class T>
  T pick(std::initializer_list<T> choices) {
    return choices.begin()[below(static_cast<int>(choices.size()))];
  }

 private:
  uint64_t state_;
};

// FNV-1a of 64 bits, by bytes.
class Digest {
 public:
  void mix(const void* data, size_t bytes) {
    const auto* p = static_cast<const uint8_t*>(data);
    for (size_t i = 0; i < bytes; ++i) hash_ = (hash_ ^ p[i]) * 0x100000001b3u;
  }
  std::string text() const {
    char out[17];
    std::snprintf(out, sizeof out, "%016llx", static_cast<unsigned long long>(hash_));
    return out;
  }

 private:
  uint64_t hash_ = 0xcbf29ce484222325u;
};

class Report {
 public:
  explicit Report(bool quick) : quick_(quick) {}

  bool quick() const { return quick_; }
  int passed() const { return passed_; }
  int failed() const { return failed_; }

  // `what` is made into text only where it's needed.
  template <class... Args>
  bool check(bool good, const char* what, Args... args) {
    if (good) {
      ++passed_;
      return true;
    }
    if (++failed_ <= kShown) {
      std::printf("FAILED ");
      std::printf(what, args...);
      std::printf("\n");
    } else if (failed_ == kShown + 1) {
      std::printf("FAILED (more of them, not shown)\n");
    }
    return false;
  }

  // Bits of one call: `got` must equal `want`; counts as a run of `kernel` in `row`. A case that
  // the quick run has too goes into both digests.
  template <class T>
  void compare(const std::string& kernel, const char* row, bool in_quick, int m,
               const std::vector<T>& got, const std::vector<T>& want) {
    Entry& e = entries_[kernel][row];
    ++e.calls;
    e.full.mix(got.data(), got.size() * sizeof(T));
    if (in_quick) e.quick.mix(got.data(), got.size() * sizeof(T));
    size_t i = 0;
    if (got.size() != want.size() ||
        std::memcmp(got.data(), want.data(), got.size() * sizeof(T)) != 0)
      while (i < got.size() && i < want.size() && std::memcmp(&got[i], &want[i], sizeof(T)) == 0)
        ++i;
    else
      i = got.size();
    check(i == got.size(), "%s: row %s, m %d: first difference at index %zu of %zu", kernel.c_str(),
          row, m, i, got.size());
  }

  // One line per kernel; every row must have run it and have the golden digest (unless `golden` is
  // empty).
  void finish(const std::vector<std::string>& rows, const std::string& golden) {
    std::map<std::string, std::pair<std::string, std::string>> known;
    if (!golden.empty()) known = read(golden);
    for (const auto& [kernel, by_row] : entries_) {
      const bool everywhere = by_row.count("any") != 0;
      std::string ran;
      for (const std::string& row : everywhere ? std::vector<std::string>{"any"} : rows) {
        const auto it = by_row.find(row);
        if (!check(it != by_row.end(), "%s: row %s was never run", kernel.c_str(), row.c_str()))
          continue;
        ran += " " + row + ":" + std::to_string(it->second.calls);
        if (golden.empty()) continue;
        const auto line = known.find(kernel);
        if (!check(line != known.end(), "%s: no golden digest", kernel.c_str())) continue;
        const std::string want = quick_ ? line->second.first : line->second.second;
        const std::string got = (quick_ ? it->second.quick : it->second.full).text();
        check(got == want, "%s: row %s: digest %s, golden %s", kernel.c_str(), row.c_str(),
              got.c_str(), want.c_str());
      }
      const Entry& first = by_row.begin()->second;
      std::printf("%-22s %s  calls%s\n", kernel.c_str(),
                  (quick_ ? first.quick : first.full).text().c_str(), ran.c_str());
    }
    for (const auto& [kernel, line] : known)
      check(entries_.count(kernel) != 0, "%s: in the golden file, not tested", kernel.c_str());
  }

  bool write(const std::string& path) const {
    std::ofstream out(path);
    out << "# Bits of every kernel on the seeded inputs of kernels_test, the same on every row of "
           "the\n"
           "# dispatch table and every machine: kernel, digest of --quick, digest of the whole "
           "run.\n"
           "# FNV-1a 64 of the scalar row's results. Arithmetic version 1. A change of inputs or "
           "of\n"
           "# the arithmetic version regenerates it: kernels_test --write FILE\n";
    for (const auto& [kernel, by_row] : entries_) {
      const Entry& e = by_row.count("any") != 0 ? by_row.at("any") : by_row.at("scalar");
      out << kernel << ' ' << e.quick.text() << ' ' << e.full.text() << '\n';
    }
    return static_cast<bool>(out.flush());
  }

 private:
  static constexpr int kShown = 40;
  struct Entry {
    Digest quick, full;
    int calls = 0;
  };

  std::map<std::string, std::pair<std::string, std::string>> read(const std::string& path) {
    std::map<std::string, std::pair<std::string, std::string>> out;
    std::ifstream in(path);
    check(static_cast<bool>(in), "can't read the golden file %s", path.c_str());
    for (std::string line; std::getline(in, line);) {
      if (line.empty() || line[0] == '#') continue;
      std::istringstream words(line);
      std::string kernel, quick, full;
      words >> kernel >> quick >> full;
      out[kernel] = {quick, full};
    }
    return out;
  }

  bool quick_;
  int passed_ = 0, failed_ = 0;
  std::map<std::string, std::map<std::string, Entry>> entries_;
};

}  // namespace draftproof::test
