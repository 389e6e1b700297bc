"""Grok-1 and Grok-2 in plain torch, fp64, one token sequence at a time: written from the published facts, for comparison only.

Each takes its checkpoint's own tensors, under their own names, and the numbers of its config.
"""

from __future__ import annotations

import math

import torch

Tensors = dict[str, torch.Tensor]


def norm(x: torch.Tensor, scale: torch.Tensor, eps: float) -> torch.Tensor:
    return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + eps) * scale


def turn(x: torch.Tensor, theta: float) -> torch.Tensor:
    """Rotate the halves of each head of x [positions, heads, dim]."""
    dim = x.shape[-1]
    angles = torch.arange(len(x)).double()[:, None, None] / theta ** (torch.arange(0, dim, 2).double() / dim)
    left, right = x[..., : dim // 2], x[..., dim // 2 :]
    return torch.cat([left * angles.cos() - right * angles.sin(), right * angles.cos() + left * angles.sin()], -1)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, c: dict) -> torch.Tensor:
    """q [n, heads, dim], k, v [n, kv_heads, dim], not yet rotated → [n, heads * dim]."""
    n, heads, _ = q.shape
    q, k = turn(q, c["rope_theta"]), turn(k, c["rope_theta"])
    k, v = (t.repeat_interleave(heads // t.shape[1], dim=1) for t in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q, k) * c["attn_output_multiplier"]
    length = c.get("attn_temperature_len", -1)
    heat = torch.tensor([math.log2(i) / math.log2(length) if i > length > 0 else 1.0 for i in range(n)]).double()[None, :, None]
    cap = c["attn_logit_softcapping"]
    after = c.get("attn_temperature_after_cap", True)
    scores = heat * cap * torch.tanh(scores / cap) if after else cap * torch.tanh(heat * scores / cap)
    scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
    return torch.einsum("hij,jhd->ihd", scores.softmax(-1), v).flatten(1)


def choose(logits: torch.Tensor, c: dict) -> list[list[tuple[int, float]]]:
    """Of each row, its experts with their weights."""
    if cap := c.get("router_logit_softcapping"):
        logits = cap * torch.tanh(logits / cap)
    chosen = []
    for row in logits.softmax(-1).tolist():
        best = sorted(range(len(row)), key=lambda e: -row[e])[: c["num_experts_per_tok"]]
        total = sum(row[e] for e in best) if c.get("norm_topk_prob") else 1.0
        chosen.append([(e, row[e] / total) for e in best])
    return chosen


def gelu(x: torch.Tensor, c: dict) -> torch.Tensor:
    return torch.nn.functional.gelu(x, approximate="none" if c.get("hidden_act") == "gelu" else "tanh")


def mixture(x: torch.Tensor, gate: list, up: list, down: list, router: torch.Tensor, c: dict) -> torch.Tensor:
    """gate, up, down: each expert's [in, out]."""
    rows = []
    for row, chosen in zip(x, choose(x @ router, c), strict=True):
        rows.append(sum(weight * ((gelu(row @ gate[e], c) * (row @ up[e])) @ down[e]) for e, weight in chosen))
    return torch.stack(rows)


def grok1_logits(t: Tensors, c: dict, tokens: list[int]) -> torch.Tensor:
    """t: the leaves by path, 8-bit ones multiplied out, matrices [in, out] → [n, vocab]."""
    t = {name: value.double() for name, value in t.items()}
    eps, n = c["rms_norm_eps"], len(tokens)
    table = t["language_model/in_out_embed/embeddings"]
    x = table[tokens] * c["embedding_multiplier_scale"]
    for layer in range(c["num_hidden_layers"]):
        b = f"transformer/decoder_layer_{layer}/"
        h = norm(x, t[b + "rms_norm/scale"], eps)
        q, k, v = ((h @ t[f"{b}multi_head_attention/{part}/w"]).view(n, -1, c["head_dim"]) for part in ("query", "key", "value"))
        x = x + norm(attend(q, k, v, c) @ t[b + "multi_head_attention/linear/w"], t[b + "rms_norm_1/scale"], eps)
        h = norm(x, t[b + "rms_norm_2/scale"], eps)
        experts = (t[f"{b}moe/{part}/w"] for part in ("linear", "linear_v", "linear_1"))
        x = x + norm(mixture(h, *experts, t[b + "router/w"], c), t[b + "rms_norm_3/scale"], eps)
    return norm(x, t["language_model/rms_norm/scale"], eps) @ table.T * c["output_multiplier_scale"]


def grok2_logits(t: Tensors, c: dict, tokens: list[int]) -> torch.Tensor:
    """t: the tensors by name, whole, matrices [out, in] → [n, vocab]."""
    t = {name: value.double() for name, value in t.items()}
    c = {"attn_output_multiplier": c["head_dim"] ** -0.5} | c
    eps, n = c["rms_norm_eps"], len(tokens)
    x = t["model.embed_tokens.weight"][tokens] * c["embedding_multiplier_scale"]
    for layer in range(c["num_hidden_layers"]):
        b = f"model.layers.{layer}."
        h = norm(x, t[b + "pre_attn_norm.weight"], eps)
        q, k, v = ((h @ t[f"{b}self_attn.{part}_proj.weight"].T).view(n, -1, c["head_dim"]) for part in "qkv")
        x = x + norm(attend(q, k, v, c) @ t[b + "self_attn.o_proj.weight"].T, t[b + "post_attn_norm.weight"], eps)
        h = norm(x, t[b + "pre_moe_norm.weight"], eps)
        moe = b + "block_sparse_moe."
        experts = ([t[f"{moe}experts.{e}.{part}.weight"].T for e in range(c["num_local_experts"])] for part in ("w1", "w3", "w2"))
        y = mixture(h, *experts, t[moe + "gate.weight"].T, c)
        if c["residual_moe"]:
            gate, up, down = (t[f"{b}mlp.{part}_proj.weight"].T for part in ("gate", "up", "down"))
            y = (y + (gelu(h @ gate, c) * (h @ up)) @ down) / math.sqrt(2)
        x = x + norm(y, t[b + "post_moe_norm.weight"], eps)
    logits = norm(x, t["model.norm.weight"], eps) @ t["lm_head.weight"].T * c["output_multiplier_scale"]
    return c["final_logit_softcapping"] * torch.tanh(logits / c["final_logit_softcapping"])
