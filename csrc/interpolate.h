// Rows of a table mixed by weights: how a vision model's learned positions become those of an
// image's grid. Knows no grid.
#pragma once

#include <cstdint>

namespace draftproof {

// out[r] = ((w0 * t0 + w1 * t1) + w2 * t2) + w3 * t3 per element, each step rounded, with t_i = row
// indices[r][i] of table [.., width] and w_i = weights[r][i]. Indices are the caller's to check.
void mix_rows(const float* table, int64_t width, const int32_t* indices, const float* weights,
              int64_t rows, float* out, int64_t out_stride);

}  // namespace draftproof
