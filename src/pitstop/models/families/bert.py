"""BERT (Devlin et al. 2019): an encoder with absolute positions, token types, GELU, a norm after each half of a block."""

from __future__ import annotations

from pitstop.models.encoder_config import EncoderConfig
from pitstop.models.families.family import ACTIVATIONS, Family, count_layers, count_tokens
from pitstop.models.keys import Keys

OUTSIDE = {
    "token_embd": "embeddings.word_embeddings",
    "position_embd": "embeddings.position_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "token_embd_norm": "embeddings.LayerNorm",
}
BLOCK = {
    "attn_q": "attention.self.query",
    "attn_k": "attention.self.key",
    "attn_v": "attention.self.value",
    "attn_output": "attention.output.dense",
    "attn_output_norm": "attention.output.LayerNorm",
    "ffn_up": "intermediate.dense",
    "ffn_down": "output.dense",
    "layer_output_norm": "output.LayerNorm",
}
_OF_TRAINING = (
    "attention_probs_dropout_prob",
    "classifier_dropout",
    "directionality",
    "gradient_checkpointing",
    "hidden_dropout_prob",
    "output_past",
    "pooler_fc_size",
    "pooler_num_attention_heads",
    "pooler_num_fc_layers",
    "pooler_size_per_head",
    "pooler_type",
    "tie_word_embeddings",
)
"""Keys of dropout, and of heads that no embedding goes through."""


def encoder(keys: Keys, first_position: int) -> EncoderConfig:
    """The config of an encoder of this kind. first_position: of a text's first token, in the table of positions.

    Raises WeightsError for sizes that do not fit together.
    """
    for name in _OF_TRAINING:
        keys.get(name)
    keys.choice("position_embedding_type", {"absolute": None}, "absolute")
    width, heads = keys.integer("hidden_size"), keys.integer("num_attention_heads")
    if width % heads:
        raise keys.refuse("num_attention_heads", f"heads do not divide a width of {width}")
    positions = keys.integer("max_position_embeddings")
    activations = {name: kind for name, kind in ACTIVATIONS.items() if kind != "silu"} | {"gelu_new": "gelu_tanh"}
    return EncoderConfig(
        architecture=keys.get("model_type"),
        layers=count_layers(keys),
        width=width,
        heads=heads,
        ffn=keys.integer("intermediate_size"),
        vocab_size=count_tokens(keys),
        context=positions - first_position,
        positions=positions,
        first_position=first_position,
        token_types=keys.integer("type_vocab_size", 2),
        norm_eps=keys.number("layer_norm_eps", 1e-12),
        activation=keys.choice("hidden_act", activations, "gelu"),
    )


def family(name: str, read, prefix: str) -> Family:
    return Family(
        name,
        read,
        outside=OUTSIDE,
        block=BLOCK,
        layers="encoder.layer",
        kinds=("Model", "ForMaskedLM", "ForPreTraining"),
        prefix=prefix,
        unused=("pooler.", "cls.", "lm_head.", "embeddings.position_ids"),
    )


FAMILY = family("bert", lambda keys: encoder(keys, 0), "bert.")
