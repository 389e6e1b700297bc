"""Positions to 131,072 with a tiny model: prefill, decode, paging, codecs and the prefix cache, with time and bytes printed."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import write_tiny_model

from pitstop import LLM, SamplingParams
from pitstop.engine.llm import RequestOutput
from pitstop.kv.capacity import page_bytes, stream_pages, tail_bytes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

CONTEXT, ANSWER = 131_072, 40
CHUNK = 2048
MAX_RESIDENT = 24 << 30
MAX_DIFFERENCE = {"raw32": 1e-4, "raw16": 5e-4, "int8": 1e-2, "int4": 0.2}
"""Of the five largest log-probabilities of a token, by codec."""

MODEL = {
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "use_sliding_window": True,
    "sliding_window": 4096,
    "max_window_layers": 1,
    "max_position_embeddings": CONTEXT // 4,
    "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6, "original_max_position_embeddings": CONTEXT // 4},
}
"""A layer that sees everything and one with a window, RoPE stretched by YaRN."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("long") / "long", "qwen3", **MODEL)


def prompt() -> list[int]:
    return torch.randint(3, 259, (CONTEXT - ANSWER,), generator=torch.Generator().manual_seed(1)).tolist()


def answer(llm: LLM) -> tuple[RequestOutput, float]:
    """The greedy answer that fills the context, and the seconds it took."""
    start = time.monotonic()
    output = llm.generate([prompt()], SamplingParams(max_tokens=ANSWER, temperature=0.0, logprobs=5, ignore_eos=True))[0]
    return output, time.monotonic() - start


@torch.inference_mode()
def reference(folder: Path, tokens: list[int]) -> torch.Tensor:
    """transformers' log-probabilities after the last ANSWER + 1 tokens but one, [ANSWER, vocab], with angles in fp64.

    In fp32, as it computes them, they err by up to 2⁻²⁴ · 131,072 = 0.008.
    """
    from transformers import AutoModelForCausalLM, DynamicCache

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    rotary = model.model.rotary_emb

    def exact(x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = position_ids[..., None].double() * rotary.inv_freq.double()
        both = torch.cat([angles, angles], dim=-1)
        return (both.cos() * rotary.attention_scaling).float(), (both.sin() * rotary.attention_scaling).float()

    rotary.forward = exact
    cache, ids, parts = DynamicCache(config=model.config), torch.tensor([tokens]), []
    for first in range(0, len(tokens), CHUNK):
        parts.append(model(ids[:, first : first + CHUNK], cache=cache, use_cache=True, logits_to_keep=ANSWER + 1).logits[0])
    return torch.cat(parts[-2:])[-ANSWER - 1 : -1].log_softmax(1)


@pytest.fixture(scope="module")
def expected(folder: Path) -> tuple[list[int], np.ndarray]:
    """The exact cache's greedy tokens, and what transformers says after each."""
    llm = LLM(folder, codec="raw32", prefill_chunk=CHUNK, max_running=1, memory=1 << 30)
    output, seconds = answer(llm)
    report("raw32", llm, seconds)
    scores = reference(folder, output.prompt + output.tokens).numpy()
    assert difference(output, scores) <= MAX_DIFFERENCE["raw32"]
    return output.tokens, scores


def report(codec: str, llm: LLM, seconds: float) -> None:
    store = llm.engine._runner.store
    size = stream_pages(CONTEXT, store.codec.lead_pages) * page_bytes(store.codec, store.shape) + tail_bytes(store.codec, store.shape)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    print(f"\n{codec}: {CONTEXT:,} positions in {seconds:.0f} s, {size:,} bytes of KV, at most {resident / 2**30:.1f} GiB resident")
    assert resident < MAX_RESIDENT


def difference(output: RequestOutput, expected: np.ndarray) -> float:
    scores = output.choices[0].logprobs[: len(expected)]
    return max(abs(p - expected[i, token]) for i, score in enumerate(scores) for token, p in score.top)


def test_greedy_tokens_are_the_references(expected: tuple[list[int], np.ndarray]) -> None:
    tokens, scores = expected
    assert len(tokens) == ANSWER
    assert tokens == scores.argmax(1).tolist()


@pytest.mark.parametrize("codec", ["raw16", "int8", "int4"])
def test_codecs_keep_the_distribution(folder: Path, expected: tuple[list[int], np.ndarray], codec: str) -> None:
    llm = LLM(folder, codec=codec, prefill_chunk=CHUNK, max_running=1, memory=1 << 30, guard="off")
    assert llm.engine.context == CONTEXT
    output, seconds = answer(llm)
    report(codec, llm, seconds)
    same = next((i for i, pair in enumerate(zip(output.tokens, expected[0], strict=True)) if pair[0] != pair[1]), ANSWER)
    found = difference(output, expected[1][: max(same, 1)])
    print(f"largest difference of a log-probability {found:.1e}, over {max(same, 1)} equal tokens")
    assert found <= MAX_DIFFERENCE[codec]
    again, seconds = answer(llm)
    print(f"again, from the prefix cache: {seconds:.1f} s, {again.cached_tokens:,} tokens cached")
    assert again.cached_tokens > CONTEXT - ANSWER - 256
    assert (again.tokens, again.choices[0].logprobs) == (output.tokens, output.choices[0].logprobs)
    llm.engine.check()
