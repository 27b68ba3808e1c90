// A layer of experts: rows are routed, sorted by expert, and every expert that a row chose is read
// once for all of its rows. A slot is one (row, choice); slots of one expert stand one behind the
// other. No sum depends on the sorting: a slot is computed as if it were alone, and a row's slots
// are added in the order of its choices.
#include <algorithm>
#include <cstring>

#include "player.h"

namespace draftproof {

// The likeliest experts of a row, the lower index first among equals, and their probabilities.
void Player::route(const Op& op, int64_t r) {
  const auto experts = static_cast<int>(width(op.router));
  const auto at = static_cast<size_t>(r) * static_cast<size_t>(op.used);
  float* p = row(op.router, r);  // the logits, and in their place the probabilities
  if (!kernels_.softmax(p, experts, p)) {
    flag(op.x, r);
    std::fill_n(p, experts, 0.0f);
  }
  float sum = 0.0f;
  for (int rank = 0; rank < op.used; ++rank) {
    int best = 0;
    for (int e = 1; e < experts; ++e)
      if (p[e] > p[best]) best = e;
    moe_.chosen[at + static_cast<size_t>(rank)] = best;
    moe_.probabilities[at + static_cast<size_t>(rank)] = p[best];
    sum += p[best];
    p[best] = -1.0f;  // below every probability: not chosen again
  }
  if (!op.renormalise || sum == 0.0f) return;
  for (int rank = 0; rank < op.used; ++rank)
    moe_.probabilities[at + static_cast<size_t>(rank)] /= sum;
}

// Every thread does this for itself: it takes less time than waiting for one that does.
void Player::group_by_expert(const Op& op, Routing& routing) const {
  const size_t slots = batch_.rows * static_cast<size_t>(op.used);
  auto& starts = routing.starts;
  starts.assign(static_cast<size_t>(width(op.router)), 0);
  for (size_t i = 0; i < slots; ++i) ++starts[static_cast<size_t>(moe_.chosen[i])];
  routing.groups.clear();
  int32_t slot = 0;
  for (size_t e = 0; e < starts.size(); ++e) {
    const int32_t rows = starts[e];
    if (rows > 0) routing.groups.push_back({static_cast<int32_t>(e), slot, rows});
    starts[e] = slot;
    slot += rows;
  }
  routing.slot_of.resize(slots);
  routing.row_of.resize(slots);
  for (size_t i = 0; i < slots; ++i) {
    const int32_t s = starts[static_cast<size_t>(moe_.chosen[i])]++;
    routing.slot_of[i] = s;
    routing.row_of[static_cast<size_t>(s)] = static_cast<int32_t>(i / static_cast<size_t>(op.used));
  }
}

// The inputs of all slots, in the forms wanted.
Player::Activations Player::gather(const Op& op, Forms forms, ThreadState& self) {
  Activations x = activations(op.x);
  if (batch_.rows == 1) {  // every slot has the one row
    std::fill_n(x.strides, 3, size_t{0});
    return x;
  }
  const Activations to{{reinterpret_cast<uint8_t*>(moe_.x), moe_.act32, moe_.act256},
                       {moe_.x_stride * sizeof(float), moe_.act32_stride, moe_.act256_stride}};
  uint8_t* const memory[3] = {reinterpret_cast<uint8_t*>(moe_.x), moe_.act32, moe_.act256};
  const bool wanted[3] = {forms.floats, forms.block32, forms.block256};
  const auto n = static_cast<size_t>(width(op.x));
  const size_t bytes[3] = {n * sizeof(float), n / 32 * sizeof(ActBlock32),
                           n / 256 * sizeof(ActBlock256)};
  const auto slots = static_cast<int64_t>(self.routing.row_of.size());
  in_tiles(self, slots, 1, [&](int64_t first, int64_t last) {
    for (auto s = static_cast<size_t>(first); s < static_cast<size_t>(last); ++s) {
      const auto r = static_cast<size_t>(self.routing.row_of[s]);
      for (int f = 0; f < 3; ++f)
        if (wanted[f])
          std::memcpy(memory[f] + s * to.strides[f], x.forms[f] + r * x.strides[f], bytes[f]);
    }
  });
  return to;
}

void Player::moe(const Op& op, ThreadState& self) {
  const std::vector<Linear>&gate = program_.weights().experts(op.weights[0]),
        &up = program_.weights().experts(op.weights[1]),
        &down = program_.weights().experts(op.weights[2]);
  const auto rows = static_cast<int64_t>(batch_.rows);
  Forms forms, hidden_forms;
  forms.add(gate[0]);
  forms.add(up[0]);
  hidden_forms.add(down[0]);

  // Routing needs the router's logits, quantizing the row: two kinds of work, shared out together.
  const int64_t n = width(op.x), parts = forms.quantized() ? quantize_parts(n) : 0;
  in_tiles(self, rows * (1 + parts), 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      if (i < rows) {
        route(op, i);
        continue;
      }
      const int64_t r = (i - rows) / parts;
      if (!quantize_part(forms, row(op.x, r), n, (i - rows) % parts,
                         act32_ + static_cast<size_t>(r) * act32_stride_,
                         act256_ + static_cast<size_t>(r) * act256_stride_))
        flag(op.x, r);
    }
  });
  group_by_expert(op, self.routing);
  const std::vector<ExpertRows>& groups = self.routing.groups;
  const auto num_groups = static_cast<int64_t>(groups.size());
  // Calls fn(group, first, last) for the parts of a tile of items, `per_group` to each group.
  const auto in_groups = [&](int64_t per_group, int64_t least, auto fn) {
    in_tiles(self, num_groups * per_group, least, [&](int64_t first, int64_t last) {
      while (first < last) {
        const int64_t begin = first % per_group, end = std::min(per_group, begin + last - first);
        fn(groups[static_cast<size_t>(first / per_group)], begin, end);
        first += end - begin;
      }
    });
  };

  const Activations x = gather(op, forms, self);
  in_groups(swiglu_steps_of(gate[0]), least_swiglu_steps(gate[0]),
            [&](const ExpertRows& g, int64_t first, int64_t last) {
              const auto e = static_cast<size_t>(g.expert);
              swiglu_steps(gate[e], up[e], x, g.first_slot, g.first_slot + g.rows, first, last,
                           moe_.hidden, moe_.hidden_stride, self);
            });

  const int64_t ff = down[0].in_features;
  const auto slots = static_cast<int64_t>(self.routing.row_of.size());
  if (hidden_forms.quantized()) {
    const int64_t hidden_parts = quantize_parts(ff);
    in_tiles(self, slots * hidden_parts, 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const auto s = static_cast<size_t>(i / hidden_parts);
        if (!quantize_part(hidden_forms, moe_.hidden + s * moe_.hidden_stride, ff, i % hidden_parts,
                           moe_.act32 + s * moe_.act32_stride,
                           moe_.act256 + s * moe_.act256_stride))
          flag(op.x, self.routing.row_of[s]);
      }
    });
  }

  const Activations hidden{
      {reinterpret_cast<const uint8_t*>(moe_.hidden), moe_.act32, moe_.act256},
      {moe_.hidden_stride * sizeof(float), moe_.act32_stride, moe_.act256_stride}};
  in_groups(num_panels(*down[0].info, down[0].out_features), least_panels(down[0]),
            [&](const ExpertRows& g, int64_t first, int64_t last) {
              const Linear& w = down[static_cast<size_t>(g.expert)];
              const int64_t run = g.rows > kRowBlock ? 1 : last - first;
              for (; first < last; first += run)
                for (int64_t r = 0; r < g.rows; r += kRowBlock)
                  for (int64_t panel = first; panel < first + run; ++panel) {
                    const int64_t s = g.first_slot + r;
                    const int count = static_cast<int>(std::min<int64_t>(kRowBlock, g.rows - r));
                    PanelArgs a = panel_args(w, hidden, panel, s, count, self);
                    a.out = moe_.parts + static_cast<size_t>(s) * moe_.parts_stride +
                            panel * w.info->panel_outputs;
                    a.out_stride = moe_.parts_stride;
                    kernels_.linear[w.info->index](a);
                  }
            });

  in_tiles(self, rows, 1, [&](int64_t first, int64_t last) {
    const float* parts_of_row[kMostExpertsUsed];
    for (int64_t r = first; r < last; ++r) {
      const auto at = static_cast<size_t>(r) * static_cast<size_t>(op.used);
      for (int i = 0; i < op.used; ++i)
        parts_of_row[i] =
            moe_.parts + static_cast<size_t>(self.routing.slot_of[at + static_cast<size_t>(i)]) *
                             moe_.parts_stride;
      kernels_.mix(&moe_.probabilities[at], parts_of_row, op.used,
                   op.residual >= 0 ? row(op.residual, r) : nullptr, width(op.outs[0]),
                   row(op.outs[0], r));
    }
  });
}

}  // namespace draftproof
