"""What a family is, and what all of dense decoders share: sizes, names of tensors, patterns of windows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pitstop.models.config import Activation, ModelConfig
from pitstop.models.encoder_config import EncoderConfig
from pitstop.models.keys import Keys
from pitstop.models.rope import Rope
from pitstop.models.rope_keys import read_rope

ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu_erf"}
"""By their names in Hugging Face's configs."""

OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
}
"""From GGUF's names of a decoder's parts to those in Hugging Face's checkpoints; the block's follow "blk.N." and "model.layers.N.".

{} stands for the number of an expert, which comes last in the names on our side: "blk.N.ffn_gate_exps.E"."""

_MOST_LAYERS, _MOST_EXPERTS, _MOST_TOKENS = 10_000, 100_000, 10_000_000
"""Of a model: far more than any has, and few enough that a damaged count takes little memory, where every one is spelled out."""


@dataclass(frozen=True, slots=True)
class Family:
    """name: Hugging Face's `model_type`. read: from a model's keys to its config. architectures: names under `architectures` that are this
    family's whatever the `model_type`.

    gguf: the architecture's name in GGUF files, None for one that these do not have. gguf_interleaved: the converter to GGUF permutes the
    rows of q and k so that rotary pairs lie side by side. gguf_experts: two families share the name, and this is the one with experts.
    gguf_keys: what such a file does not state, under Hugging Face's names. norm_offset: what is added to the norms' weights of a Hugging
    Face checkpoint. layers: what the names of a block's tensors begin with there, before its number. kinds: how the names under
    `architectures` end of which this is a part that we run whole.
    """

    name: str
    read: Callable[[Keys], ModelConfig | EncoderConfig]
    architectures: tuple[str, ...] = ()
    gguf: str | None = None
    gguf_interleaved: bool = False
    gguf_experts: bool = False
    gguf_keys: Mapping[str, Any] = field(default_factory=dict)
    norm_offset: float = 0.0
    outside: Mapping[str, str] = field(default_factory=lambda: OUTSIDE)
    block: Mapping[str, str] = field(default_factory=lambda: BLOCK)
    layers: str = "model.layers"
    kinds: tuple[str, ...] = ("ForCausalLM",)
    prefix: str = ""  # before every name where the checkpoint is of a model around this one
    unused: tuple[str, ...] = ()  # beginnings of the names of tensors that stand beside the model and that it never reads

    def config(self, keys: Keys) -> ModelConfig | EncoderConfig:
        """What the keys come to, under the family's name, whatever `model_type` they state."""
        return replace(self.read(keys), architecture=self.name)

    def hugging_face(self, name: str) -> str:
        """A tensor's name in Hugging Face's checkpoints, from GGUF's ("blk.3.attn_q.weight")."""
        stem, _, ending = name.rpartition(".")
        if not stem.startswith("blk."):
            return f"{self.outside[stem]}.{ending}"
        _, layer, part = stem.split(".", 2)
        part, _, expert = part.partition(".")
        return f"{self.layers}.{layer}.{self.block[part].format(expert)}.{ending}"


def dense(keys: Keys, *, head_dim: int = 0, rope: Rope | None = None, **differences: Any) -> ModelConfig:
    """The config of a dense decoder: what all families state in the same way, and the `differences` of one.

    head_dim: where the keys state none; 0: width / heads. rope: None for what the keys state in the common way.
    Raises WeightsError for sizes that do not fit together.
    """
    layers, width, heads = count_layers(keys), keys.integer("hidden_size"), keys.integer("num_attention_heads")
    kv_heads = keys.integer("num_key_value_heads", heads)
    head_dim = keys.integer("head_dim", head_dim or width // heads)
    if heads % kv_heads:
        raise keys.refuse("num_attention_heads", f"heads do not divide among {kv_heads} key-value heads")
    if head_dim < 2 or head_dim % 2:
        raise keys.refuse("head_dim", f": a head size of {head_dim}, and rotary embedding needs pairs")
    moe = differences.get("moe")
    if moe and moe.top_k > moe.experts:
        raise keys.refuse("num_experts_per_tok", f"is more than the {moe.experts} experts of a layer")
    rope = rope or read_rope(keys, head_dim, keys.number("rope_theta", 10000.0))
    common = {
        "architecture": keys.get("model_type"),
        "layers": layers,
        "width": width,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "ffn": keys.integer("intermediate_size"),
        "vocab_size": count_tokens(keys),
        "norm_eps": keys.number("rms_norm_eps", 1e-6),
        "context": rope.longest(keys.integer("max_position_embeddings")),
        "rope": rope,
        "attention_scale": head_dim**-0.5,
    }
    if "tied_head" not in differences:
        common["tied_head"] = keys.flag("tie_word_embeddings")
    if "activation" not in differences:
        common["activation"] = keys.choice("hidden_act", ACTIVATIONS, "silu")
    return ModelConfig(**(common | differences))


def count_layers(keys: Keys) -> int:
    return keys.integer("num_hidden_layers", most=_MOST_LAYERS)


def count_tokens(keys: Keys) -> int:
    """Of the vocabulary."""
    return keys.integer("vocab_size", most=_MOST_TOKENS)


def count_experts(keys: Keys, default: int) -> int:
    """Of a layer, by either of the two names that configs have for it."""
    most = _MOST_EXPERTS // count_layers(keys)
    count = keys.integer("num_local_experts", keys.integer("num_experts", default, most), most)
    if keys.integer("num_experts", count) != count:
        raise keys.refuse("num_experts", f"differs from num_local_experts = {count}; keep one of them")
    return count


def windows(keys: Keys, size: int, local: Callable[[int], bool] = lambda layer: True) -> tuple[int, ...]:
    """Each layer's window: by `layer_types` where the keys have them, else `size` where `local(layer)` says so. size 0: there is none."""
    layers = count_layers(keys)
    kinds = ("full_attention", "sliding_attention")
    types = keys.get("layer_types", [kinds[size > 0 and local(layer)] for layer in range(layers)])
    if not isinstance(types, list) or len(types) != layers or not all(kind in kinds for kind in types):
        raise keys.refuse("layer_types", f"is not a list of sliding_attention and full_attention, one for each of {layers} layers")
    if "sliding_attention" not in types:
        return ()
    if not size:
        raise keys.refuse("sliding_window", "is no window, but there are layers with one")
    return tuple(size if kind == "sliding_attention" else -1 for kind in types)
