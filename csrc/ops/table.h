// Fills one row of the dispatch table from a shim.
#pragma once

#include "ops/attention.h"
#include "ops/gelu.h"
#include "ops/linear.h"
#include "ops/rows.h"

namespace draftproof {
namespace {

template <class S>
constexpr Kernels make_kernels() {
  return Kernels{
      S::kName,
      {float_panel<S, float>, float_panel<S, Half>, float_panel<S, Bfloat>,
       quantized_panel<S, PanelQ4_0, ActBlock32>, quantized_panel<S, PanelQ4_1, ActBlock32>,
       quantized_panel<S, PanelQ5_0, ActBlock32>, quantized_panel<S, PanelQ5_1, ActBlock32>,
       quantized_panel<S, PanelQ8_0, ActBlock32>, quantized_panel<S, PanelQ4_K, ActBlock256>,
       quantized_panel<S, PanelQ5_K, ActBlock256>, quantized_panel<S, PanelQ6_K, ActBlock256>,
       quantized_panel<S, PanelQ2_K, ActBlock256>, quantized_panel<S, PanelQ3_K, ActBlock256>,
       quantized_panel<S, PanelIQ4_NL, ActBlock32>, quantized_panel<S, PanelIQ4_XS, ActBlock256>,
       quantized_panel<S, PanelMXFP4, ActBlock32>},
      quantize32<S>,
      quantize256<S>,
      rms_norm<S>,
      layer_norm<S>,
      gelu_tanh<S>,
      gelu_erf<S>,
      rope<S>,
      swiglu<S>,
      softmax<S>,
      mix<S>,
      exp_row<S>,
      store_kv<S>,
      attend_span<S>,
      combine_span<S>,
      finish_attention<S>,
  };
}

}  // namespace
}  // namespace draftproof
