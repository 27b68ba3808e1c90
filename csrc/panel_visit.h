// From a weight type at run time to the struct of its panel. Knows nothing else.
#pragma once

#include <utility>

#include "packed.h"

namespace draftproof {

// fn.operator()<Panel>() of a quantized type.
template <class Fn>
auto with_panel(WeightType type, Fn&& fn) {
  switch (type) {
    case WeightType::kQ4_0:
      return fn.template operator()<PanelQ4_0>();
    case WeightType::kQ4_1:
      return fn.template operator()<PanelQ4_1>();
    case WeightType::kQ5_0:
      return fn.template operator()<PanelQ5_0>();
    case WeightType::kQ5_1:
      return fn.template operator()<PanelQ5_1>();
    case WeightType::kQ8_0:
      return fn.template operator()<PanelQ8_0>();
    case WeightType::kQ2_K:
      return fn.template operator()<PanelQ2_K>();
    case WeightType::kQ3_K:
      return fn.template operator()<PanelQ3_K>();
    case WeightType::kQ4_K:
      return fn.template operator()<PanelQ4_K>();
    case WeightType::kQ5_K:
      return fn.template operator()<PanelQ5_K>();
    case WeightType::kQ6_K:
      return fn.template operator()<PanelQ6_K>();
    case WeightType::kIQ4_NL:
      return fn.template operator()<PanelIQ4_NL>();
    case WeightType::kIQ4_XS:
      return fn.template operator()<PanelIQ4_XS>();
    case WeightType::kMXFP4:
      return fn.template operator()<PanelMXFP4>();
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16:
      break;
  }
  __builtin_unreachable();  // the callers have taken the float types
}

}  // namespace draftproof
