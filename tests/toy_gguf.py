"""A tiny seeded Llama as a GGUF file, for every test that needs a model but not its wits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from gguf.quants import quantize

LAYERS, WIDTH, HEADS, KV_HEADS, HEAD_DIM, FFN = 2, 64, 4, 2, 16, 96
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Control tokens 0, 1, 2, as in the default model: bos is <|im_start|>, eos is <|im_end|>."""
FIRST_BYTE = len(CONTROL)
"""Token FIRST_BYTE + b stands for the byte b."""
VOCAB_SIZE = FIRST_BYTE + 256
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write_toy_gguf(path: Path, kind: str = "F32", seed: int = 0, context: int = 1024, tied: bool = True, head_dim: int = HEAD_DIM) -> Path:
    """Write the model to `path` and return it. `kind` is the matrices' type: F32, F16, BF16, Q8_0, Q4_0 or Q4_1; norms are F32.

    Two layers, width 64, 4 heads on 2 key-value heads of 16 or `head_dim`, ffn 96, a vocabulary of 3 control tokens and the 256 bytes.
    """
    writer = GGUFWriter(path, "llama")
    add_keys(writer, context, head_dim)
    for name, values in tensors(seed, tied, head_dim):
        add_tensor(writer, name, values, kind if values.ndim == 2 else "F32")
    finish(writer)
    return path


def add_keys(writer: GGUFWriter, context: int = 1024, head_dim: int = HEAD_DIM) -> None:
    """Every key that the model needs."""
    writer.add_name("toy")
    writer.add_block_count(LAYERS)
    writer.add_context_length(context)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCAB_SIZE)
    writer.add_rope_dimension_count(head_dim)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([*CONTROL, *byte_alphabet()])
    writer.add_token_types([TokenType.CONTROL] * len(CONTROL) + [TokenType.NORMAL] * 256)
    writer.add_token_merges([])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def tensors(seed: int = 0, tied: bool = True, head_dim: int = HEAD_DIM) -> Iterator[tuple[str, np.ndarray]]:
    """Names and fp32 values, matrices [out, in]. Scaled so that activations keep their size and logits differ clearly."""
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) * columns**-0.5).astype(np.float32)

    def norm() -> np.ndarray:
        return (1 + 0.1 * rng.standard_normal(WIDTH)).astype(np.float32)

    yield "token_embd.weight", matrix(VOCAB_SIZE, WIDTH) * np.float32(WIDTH**0.5)
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        yield block + "attn_norm.weight", norm()
        yield block + "attn_q.weight", matrix(HEADS * head_dim, WIDTH)
        yield block + "attn_k.weight", matrix(KV_HEADS * head_dim, WIDTH)
        yield block + "attn_v.weight", matrix(KV_HEADS * head_dim, WIDTH)
        yield block + "attn_output.weight", matrix(WIDTH, HEADS * head_dim)
        yield block + "ffn_norm.weight", norm()
        yield block + "ffn_gate.weight", matrix(FFN, WIDTH)
        yield block + "ffn_up.weight", matrix(FFN, WIDTH)
        yield block + "ffn_down.weight", matrix(WIDTH, FFN)
    yield "output_norm.weight", norm()
    if not tied:
        yield "output.weight", matrix(VOCAB_SIZE, WIDTH)


def add_tensor(writer: GGUFWriter, name: str, values: np.ndarray, kind: str) -> None:
    """Add fp32 `values` stored as `kind`."""
    dtype = GGMLQuantizationType[kind]
    writer.add_tensor(name, quantize(values, dtype), raw_dtype=dtype)


def finish(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def byte_alphabet() -> list[str]:
    """The printable stand-in of each byte in byte-level BPE: itself where printable Latin-1, else the next code point from 256 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]
