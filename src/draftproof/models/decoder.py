"""The parts that the decoder families share: tensor shapes and the blocks after attention."""

from __future__ import annotations

from collections.abc import Callable

from draftproof.models.config import ModelConfig
from draftproof.models.program import ProgramBuilder

Shapes = dict[str, tuple[int, ...]]


def mlp_shapes(c: ModelConfig, i: int) -> Shapes:
    """One MLP in layer i."""
    return {
        f"blk.{i}.ffn_gate.weight": (c.intermediate_size, c.hidden_size),
        f"blk.{i}.ffn_up.weight": (c.intermediate_size, c.hidden_size),
        f"blk.{i}.ffn_down.weight": (c.hidden_size, c.intermediate_size),
    }


def expert_shapes(c: ModelConfig, i: int) -> Shapes:
    """A router and many MLPs in layer i."""
    wide, narrow = (c.num_experts, c.expert_size), (c.num_experts, c.hidden_size)
    return {
        f"blk.{i}.ffn_gate_inp.weight": narrow,
        f"blk.{i}.ffn_gate_exps.weight": (*wide, c.hidden_size),
        f"blk.{i}.ffn_up_exps.weight": (*wide, c.hidden_size),
        f"blk.{i}.ffn_down_exps.weight": (*narrow, c.expert_size),
    }


def common_shapes(
    c: ModelConfig, mlp_of_layer: Callable[[ModelConfig, int], Shapes] = mlp_shapes
) -> Shapes:
    """Tensor name -> shape (out, in), of experts (expert, out, in), that every family has; all
    must be in the file."""
    q, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    shapes: Shapes = {"token_embd.weight": (c.vocab_size, c.hidden_size)}
    for i in range(c.num_layers):
        shapes |= {
            f"blk.{i}.attn_norm.weight": (c.hidden_size,),
            f"blk.{i}.attn_q.weight": (q, c.hidden_size),
            f"blk.{i}.attn_k.weight": (kv, c.hidden_size),
            f"blk.{i}.attn_v.weight": (kv, c.hidden_size),
            f"blk.{i}.attn_output.weight": (c.hidden_size, q),
            f"blk.{i}.ffn_norm.weight": (c.hidden_size,),
        }
        shapes |= mlp_of_layer(c, i)
    shapes["output_norm.weight"] = (c.hidden_size,)
    if not c.tied:
        shapes["output.weight"] = (c.vocab_size, c.hidden_size)
    return shapes


def attend_and_add(p: ProgramBuilder, i: int) -> None:
    """Rotation, attention and output projection of layer i, added to the residual stream x."""
    p.rope(["q", "k"])
    p.attention("mixed", "q", "k", "v", layer=i)
    p.linear(["x"], "mixed", [f"blk.{i}.attn_output.weight"], residual="x")


def mlp(p: ProgramBuilder, i: int) -> None:
    """x += down(silu(gate(norm(x))) * up(norm(x)))"""
    p.rms_norm("normed", "x", f"blk.{i}.ffn_norm.weight")
    p.swiglu_linear("hidden", "normed", f"blk.{i}.ffn_gate.weight", f"blk.{i}.ffn_up.weight")
    p.linear(["x"], "hidden", [f"blk.{i}.ffn_down.weight"], residual="x")


def experts(p: ProgramBuilder, c: ModelConfig, i: int) -> None:
    """x += the likeliest experts' down(silu(gate(norm(x))) * up(norm(x))), by their
    probabilities."""
    p.rms_norm("normed", "x", f"blk.{i}.ffn_norm.weight")
    p.linear(["router"], "normed", [f"blk.{i}.ffn_gate_inp.weight"])
    p.moe(
        "x",
        "normed",
        "router",
        [f"blk.{i}.ffn_{name}_exps.weight" for name in ("gate", "up", "down")],
        used=c.experts_used,
        renormalise=c.renormalise_experts,
        residual="x",
    )


def head(p: ProgramBuilder, c: ModelConfig) -> None:
    """Final norm and LM head, only for the rows whose logits are wanted."""
    p.select_logit_rows("last", "x")
    p.rms_norm("last_normed", "last", "output_norm.weight")
    p.hidden("last_normed")
    p.linear(["last_logits"], "last_normed", ["token_embd.weight" if c.tied else "output.weight"])
    p.logits("last_logits")
