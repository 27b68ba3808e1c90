// The operations of a program: how each is cut into tiles that threads share out. A tile is whole
// outputs of whole rows, so no reduction is ever split here.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "player.h"
#include "rope_table.h"

namespace draftproof {

int64_t Player::rows_of(int buffer) const {
  const bool logits = program_.buffers()[static_cast<size_t>(buffer)].space == Space::kLogits;
  return static_cast<int64_t>(logits ? batch_.num_logit_rows : batch_.rows);
}

void Player::flag(int buffer, int64_t r) {
  const bool logits = program_.buffers()[static_cast<size_t>(buffer)].space == Space::kLogits;
  const auto at = static_cast<size_t>(logits ? batch_.logit_rows[r] : r);
  std::atomic_ref<uint8_t>(flags_[at]).store(1, std::memory_order_relaxed);
}

const float* Player::vector_of(int64_t r) const {
  return batch_.vectors +
         static_cast<size_t>(-1 - batch_.tokens[r]) * static_cast<size_t>(program_.vector_width());
}

void Player::embed(const Op& op, ThreadState& self) {
  const Linear& table = program_.weights().linear(op.weights[0]);
  in_tiles(self, rows_of(op.outs[0]), 1, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const int32_t token = batch_.tokens[r];
      float* out = row(op.outs[0], r);
      if (token >= 0) {
        unpack_row(table.type, table.packed, table.in_features, token, out);
      } else {
        std::memcpy(out, vector_of(r), static_cast<size_t>(table.in_features) * sizeof(float));
      }
    }
  });
}

void Player::vectors(const Op& op, ThreadState& self) {
  const auto n = static_cast<size_t>(width(op.outs[0]));
  in_tiles(self, rows_of(op.outs[0]), 1, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      float* out = row(op.outs[0], r);
      if (batch_.tokens[r] < 0)
        std::memcpy(out, vector_of(r) + op.column, n * sizeof(float));
      else
        std::fill_n(out, n, 0.0f);
    }
  });
}

void Player::add_vectors(const Op& op, ThreadState& self) {
  const int64_t n = width(op.outs[0]);
  in_tiles(self, rows_of(op.outs[0]), 1, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      if (batch_.tokens[r] >= 0) continue;
      const float* v = vector_of(r) + op.column;
      float* x = row(op.outs[0], r);
      for (int64_t i = 0; i < n; ++i) x[i] = x[i] + v[i];
    }
  });
}

void Player::layer_norm(const Op& op, ThreadState& self) {
  const std::vector<float>&weight = program_.weights().vector(op.weights[0]),
        &bias = program_.weights().vector(op.biases[0]);
  in_tiles(self, rows_of(op.x), 1, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r)
      kernels_.layer_norm(row(op.x, r), weight.data(), bias.data(), static_cast<int>(weight.size()),
                          op.eps, row(op.outs[0], r));
  });
}

void Player::gelu(const Op& op, ThreadState& self) {
  const auto kernel = op.exact ? kernels_.gelu_erf : kernels_.gelu_tanh;
  in_tiles(self, rows_of(op.x), 1, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) kernel(row(op.x, r), width(op.x), row(op.outs[0], r));
  });
}

// A marked row and those before it, side by side.
void Player::join(const Op& op, ThreadState& self) {
  const int64_t n = width(op.x), count = width(op.outs[0]) / n;
  in_tiles(self, rows_of(op.outs[0]), 1, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r)
      for (int64_t i = 0; i < count; ++i)
        std::memcpy(row(op.outs[0], r) + i * n, row(op.x, batch_.logit_rows[r] - count + 1 + i),
                    static_cast<size_t>(n) * sizeof(float));
  });
}

void Player::rms_norm(const Op& op, ThreadState& self) {
  const std::vector<float>& weight = program_.weights().vector(op.weights[0]);
  in_tiles(self, rows_of(op.x), 1, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r)
      kernels_.rms_norm(row(op.x, r), weight.data(), static_cast<int>(weight.size()), op.groups,
                        op.eps, row(op.outs[0], r));
  });
}

Player::Activations Player::activations(int buffer) const {
  const auto* x = reinterpret_cast<const uint8_t*>(row(buffer, 0));
  return {{x, act32_, act256_},
          {strides_[static_cast<size_t>(buffer)] * sizeof(float), act32_stride_, act256_stride_}};
}

// Quantizes part `part` of a row x[n] into each wanted form; false if a value is not finite.
bool Player::quantize_part(Forms forms, const float* x, int64_t n, int64_t part, uint8_t* act32,
                           uint8_t* act256) const {
  const int64_t begin = part * kQuantizePart, count = std::min(kQuantizePart, n - begin);
  bool finite = true;
  if (forms.block32)
    finite &=
        kernels_.quantize32(x + begin, count, reinterpret_cast<ActBlock32*>(act32) + begin / 32);
  if (forms.block256)
    finite &= kernels_.quantize256(x + begin, count,
                                   reinterpret_cast<ActBlock256*>(act256) + begin / 256);
  return finite;
}

// Quantizes the input of a linear operation in each form that its weights need, a part of a row at
// a time.
void Player::quantize(const Op& op, ThreadState& self) {
  Forms forms;
  for (int id : op.weights) forms.add(program_.weights().linear(id));
  if (!forms.quantized()) return;
  const int64_t n = width(op.x), parts = quantize_parts(n);
  in_tiles(self, rows_of(op.x) * parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t r = i / parts;
      if (!quantize_part(forms, row(op.x, r), n, i % parts,
                         act32_ + static_cast<size_t>(r) * act32_stride_,
                         act256_ + static_cast<size_t>(r) * act256_stride_))
        flag(op.x, r);
    }
  });
}

PanelArgs Player::panel_args(const Linear& w, const Activations& x, int64_t panel,
                             int64_t first_row, int rows, ThreadState& self) {
  PanelArgs a{};
  a.panel = w.packed + static_cast<size_t>(panel) * panel_bytes(*w.info, w.in_features);
  a.blocks = w.in_features / w.info->block_inputs;
  const auto form = static_cast<size_t>(w.info->form);
  a.act_stride = x.strides[form];
  a.act = x.forms[form] + static_cast<size_t>(first_row) * a.act_stride;
  a.rows = rows;
  a.outputs = static_cast<int>(
      std::min<int64_t>(w.info->panel_outputs, w.out_features - panel * w.info->panel_outputs));
  a.tile_calls = self.linear_calls[static_cast<size_t>(w.info->index)].data();
  return a;
}

void Player::linear(const Op& op, ThreadState& self) {
  quantize(op, self);
  const Activations x = activations(op.x);
  const int64_t rows = rows_of(op.x);
  for (size_t i = 0; i < op.weights.size(); ++i) {
    const Linear& w = program_.weights().linear(op.weights[i]);
    const std::vector<float>* bias =
        op.biases[i] < 0 ? nullptr : &program_.weights().vector(op.biases[i]);
    const int64_t panels = num_panels(*w.info, w.out_features);
    const int64_t least = least_panels(w);
    const auto one = [&](int64_t panel, int64_t r, int count) {
      PanelArgs a = panel_args(w, x, panel, r, count, self);
      const int64_t output = panel * w.info->panel_outputs;
      a.out = row(op.outs[i], r) + output;
      a.out_stride = strides_[static_cast<size_t>(op.outs[i])];
      if (bias != nullptr) a.bias = bias->data() + output;
      if (op.residual >= 0) {
        a.residual = row(op.residual, r) + output;
        a.residual_stride = strides_[static_cast<size_t>(op.residual)];
      }
      kernels_.linear[w.info->index](a);
    };
    const auto work = [&](int64_t first, int64_t last) {
      // Row blocks reuse a handful of panels while these are in cache.
      const int64_t group = rows > kRowBlock ? least : last - first;
      for (; first < last; first += group) {
        for (int64_t r = 0; r < rows; r += kRowBlock) {
          const int count = static_cast<int>(std::min<int64_t>(kRowBlock, rows - r));
          for (int64_t panel = first; panel < std::min(last, first + group); ++panel)
            one(panel, r, count);
        }
      }
    };
    in_tiles(self, panels, least, work);
  }
}

// Gate, up and SwiGLU of steps [first, last) of outputs, for rows [begin, end) of x; out: row 0.
// Gate and up may be of two types, with panels of 16 or 64 outputs: steps of 64 outputs fit both.
// A run of gate panels, then the same run of up panels, so that weights stream.
void Player::swiglu_steps(const Linear& gate, const Linear& up, const Activations& x, int64_t begin,
                          int64_t end, int64_t first, int64_t last, float* out, size_t out_stride,
                          ThreadState& self) {
  const auto half = [&](const Linear& w, int64_t output, int64_t outputs, int64_t r, int count,
                        float* to) {
    const int64_t per_panel = w.info->panel_outputs;
    for (int64_t o = output; o < output + outputs; o += per_panel) {
      PanelArgs a = panel_args(w, x, o / per_panel, r, count, self);
      a.out = to + (o - output);
      a.out_stride = kSwigluStride;
      kernels_.linear[w.info->index](a);
    }
  };
  // Row blocks reuse what is in cache.
  const int64_t run = end - begin > kRowBlock ? 1 : kSwigluSteps;
  for (; first < last; first += run) {
    const int64_t output = first * kSwigluStep;
    const int64_t n =
        std::min({run * kSwigluStep, last * kSwigluStep - output, gate.out_features - output});
    for (int64_t r = begin; r < end; r += kRowBlock) {
      const int count = static_cast<int>(std::min<int64_t>(kRowBlock, end - r));
      half(gate, output, n, r, count, self.gate.data());
      half(up, output, n, r, count, self.up.data());
      for (int i = 0; i < count; ++i)
        kernels_.swiglu(self.gate.data() + kSwigluStride * i, self.up.data() + kSwigluStride * i, n,
                        out + static_cast<size_t>(r + i) * out_stride + output);
    }
  }
}

void Player::swiglu_linear(const Op& op, ThreadState& self) {
  quantize(op, self);
  const Linear &gate = program_.weights().linear(op.weights[0]),
               &up = program_.weights().linear(op.weights[1]);
  const Activations x = activations(op.x);
  in_tiles(self, swiglu_steps_of(gate), least_swiglu_steps(gate), [&](int64_t first, int64_t last) {
    swiglu_steps(gate, up, x, 0, rows_of(op.x), first, last, row(op.outs[0], 0),
                 strides_[static_cast<size_t>(op.outs[0])], self);
  });
}

void Player::rope(const Op& op, ThreadState& self) {
  const int half = op.head_dim / 2;
  in_tiles(self, rows_of(op.outs[0]), 1, [&](int64_t first, int64_t last) {
    float cos[512], sin[512];
    for (int64_t r = first; r < last; ++r) {
      for (int j = 0; j < half; ++j)
        rope_cos_sin(op.turns[static_cast<size_t>(j)],
                     batch_.positions[3 * r + op.axes[static_cast<size_t>(j)]], &cos[j], &sin[j],
                     op.magnitude);
      for (int x : op.outs)
        kernels_.rope(row(x, r), static_cast<int>(width(x) / op.head_dim), op.head_dim, cos, sin);
    }
  });
}

void Player::select(const Op& op, ThreadState& self) {
  in_tiles(self, rows_of(op.outs[0]), 1, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r)
      std::memcpy(row(op.outs[0], r), row(op.x, batch_.logit_rows[r]),
                  static_cast<size_t>(width(op.x)) * sizeof(float));
  });
}

SpanArgs Player::span_args(const Op& op, ThreadState& self, const AttentionTile& tile,
                           const QueryHeads& heads) const {
  SpanArgs a{};
  a.kv = program_.kv().view(op.layer, heads.kv_head);
  a.block_table = batch_.block_tables + batch_.segments[tile.segment].first_page;
  a.q = row(op.x, static_cast<int64_t>(tile.first_row)) +
        static_cast<size_t>(heads.first) * static_cast<size_t>(op.head_dim);
  a.q_stride = strides_[static_cast<size_t>(op.x)];
  a.rows = tile.rows;
  a.group = heads.count;
  a.first_position = tile.first_position;
  a.seen = tile.seen;
  a.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(op.head_dim)));
  a.scores = self.scores.data();
  a.partial = self.partial.data();
  a.partial_stride = static_cast<size_t>(kLanes + a.kv.value_stride);
  return a;
}

void Player::finish_tile(const Op& op, const AttentionTile& tile, const QueryHeads& heads,
                         const float* states) {
  const size_t stride = static_cast<size_t>(kLanes + program_.kv().view(0, 0).value_stride);
  for (int pair = 0; pair < tile.rows * heads.count; ++pair) {
    const auto r = static_cast<int64_t>(tile.first_row) + pair / heads.count;
    float* out = row(op.outs[0], r) + (heads.first + pair % heads.count) * op.head_dim;
    if (!kernels_.finish_attention(states + static_cast<size_t>(pair) * stride, op.head_dim, out))
      flag(op.outs[0], r);
  }
}

// All spans of a tile by one thread, ascending.
void Player::attend_tile(const Op& op, ThreadState& self, const AttentionTile& tile,
                         const QueryHeads& heads) {
  SpanArgs a = span_args(op, self, tile, heads);
  const int pairs = tile.rows * heads.count;
  for (a.span = 0; a.span < tile.spans; ++a.span) {
    a.partial = a.span == 0 ? self.state.data() : self.partial.data();
    kernels_.attend_span(a);
    for (int pair = 0; a.span > 0 && pair < pairs; ++pair) {
      if (!tile.sees(pair / heads.count, a.span)) continue;  // the row ends before
      const size_t at = static_cast<size_t>(pair) * a.partial_stride;
      kernels_.combine_span(self.state.data() + at, self.partial.data() + at, a.kv.value_stride);
    }
  }
  finish_tile(op, tile, heads, self.state.data());
}

void Player::attention(const Op& op, ThreadState& self) {
  const int kv_heads = program_.kv().kv_heads(), dim = op.head_dim;
  in_tiles(self, rows_of(op.x), 1, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const size_t s = segment_of_row_[static_cast<size_t>(r)];
      const Segment& segment = batch_.segments[s];
      int64_t segment_row = r;
      for (size_t i = 0; i < s; ++i) segment_row -= batch_.segments[i].rows;
      bool finite = true;
      for (int h = 0; h < kv_heads; ++h)
        finite &= kernels_.store_kv(
            program_.kv().view(op.layer, h), batch_.block_tables + segment.first_page,
            segment.first_position + segment_row, row(op.k, r) + h * dim, row(op.v, r) + h * dim);
      if (!finite) flag(op.k, r);
    }
  });
  const auto tiles = static_cast<int64_t>(tiles_.size());
  const size_t stride = static_cast<size_t>(kLanes + program_.kv().view(0, 0).value_stride);
  int rows = 0;  // of the largest tile
  for (const AttentionTile& tile : tiles_) rows = std::max(rows, tile.rows);
  // Work is a tile, a KV head and, while there are few of these, a span of it, and then, where that
  // still leaves threads idle, some of the KV head's queries. Nothing of it is a sum's business.
  const bool many_spans = most_spans_ > 1 && tiles * kv_heads < 4 * pool_.size();
  const int64_t pieces = tiles * kv_heads * (many_spans ? most_spans_ : 1);
  const int64_t wanted = std::min<int64_t>(op.groups, (pool_.size() + pieces - 1) / pieces);
  const int most_heads = static_cast<int>((op.groups + wanted - 1) / wanted);
  const int64_t parts = (op.groups + most_heads - 1) / most_heads, units = kv_heads * parts;
  if (parts > 1 && &self == &threads_[0]) ++self.split_attentions;
  const auto heads_of = [&](int64_t unit) {
    const int kv_head = static_cast<int>(unit / parts),
              skip = static_cast<int>(unit % parts) * most_heads;
    return QueryHeads{kv_head, kv_head * op.groups + skip, std::min(most_heads, op.groups - skip)};
  };
  const size_t largest = static_cast<size_t>(rows * most_heads) * stride;
  const bool share_spans =
      many_spans &&
      static_cast<size_t>(tiles * units * most_spans_) * largest <= span_parts_floats_;
  if (!share_spans) {
    in_tiles(self, tiles * units, 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i)
        attend_tile(op, self, tiles_[static_cast<size_t>(i / units)], heads_of(i % units));
    });
    return;
  }
  // Threads take spans, then one of them puts a tile's spans together in order.
  const auto part = [&](int64_t i, int64_t span) {
    return span_parts_ + static_cast<size_t>(i * most_spans_ + span) * largest;
  };
  in_tiles(self, tiles * units * most_spans_, 1, [&](int64_t first, int64_t last) {
    for (int64_t n = first; n < last; ++n) {
      const int64_t i = n / most_spans_, span = n % most_spans_;
      const AttentionTile& tile = tiles_[static_cast<size_t>(i / units)];
      if (span >= tile.spans) continue;
      SpanArgs a = span_args(op, self, tile, heads_of(i % units));
      a.span = span;
      a.partial = part(i, span);
      kernels_.attend_span(a);
    }
  });
  in_tiles(self, tiles * units, 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const AttentionTile& tile = tiles_[static_cast<size_t>(i / units)];
      const QueryHeads heads = heads_of(i % units);
      float* state = part(i, 0);
      for (int64_t span = 1; span < tile.spans; ++span) {
        for (int pair = 0; pair < tile.rows * heads.count; ++pair) {
          if (!tile.sees(pair / heads.count, span)) continue;
          const size_t at = static_cast<size_t>(pair) * stride;
          kernels_.combine_span(state + at, part(i, span) + at, static_cast<int>(stride) - kLanes);
        }
      }
      finish_tile(op, tile, heads, state);
    }
  });
}

}  // namespace draftproof
