// Owns: one check of a plain test program, and the count of those that failed. Knows nothing of
// what is tested.
#pragma once

#include <cstdio>

namespace draftproof {
namespace {

int failures = 0;

#define CHECK(condition, ...)                                     \
  do {                                                            \
    if (!(condition)) {                                           \
      ++failures;                                                 \
      std::printf("%s:%d: %s: ", __FILE__, __LINE__, #condition); \
      std::printf(__VA_ARGS__);                                   \
      std::printf("\n");                                          \
    }                                                             \
  } while (0)

}  // namespace
}  // namespace draftproof
