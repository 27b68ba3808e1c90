// Rows of floats into GGUF tensor data: F32, F16, BF16, Q8_0, Q5_0, Q4_K and Q6_K. The same bits on
// every machine and with any number of threads. Owns the block layouts of writing; knows no names.
#pragma once

#include <cstddef>
#include <cstdint>

#include "thread_pool.h"

namespace draftproof {

// Bytes of a row of `width` values in `ggml_type`; 0 if it can't be written or 1, 32 or 256 doesn't
// divide the width.
size_t quantized_row_bytes(int32_t ggml_type, int64_t width);

// source: [rows, width] in `source_type` (F32, F16 or BF16), out: [rows, quantized_row_bytes].
// Returns -1, or a row with a value that isn't finite or has no finite form in `ggml_type`.
int64_t quantize_rows(int32_t source_type, const uint8_t* source, int32_t ggml_type, int64_t rows,
                      int64_t width, uint8_t* out, ThreadPool& pool);

}  // namespace draftproof
