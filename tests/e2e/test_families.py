"""Every family against transformers on a tiny seeded model, with an fp32 cache: logits, greedy tokens, and answers to the bit."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from logits import prompt_logits
from servers import model_server
from test_bit_exact import check_matrix
from tiny_models import FAMILIES, VOCAB_SIZE, write_tiny_model
from to_gguf import KEYS, write_gguf

from pitstop import LLM, SamplingParams
from pitstop.engine import llm as llm_module
from pitstop.models import families
from pitstop.models.weights.source import open_model
from pitstop.pool.texts import read_model

DOCS = Path(__file__).resolve().parents[2] / "docs" / "models.md"

MAX_DIFFERENCE = 2e-5
"""Of logits, relative to the largest: fp32 rounding in another order of summation."""

LENGTH = 300
"""Tokens of the prompt: it fills two segments, reads both from the third, and is longer than the windows."""

FAULTS = {
    "llama": {"output_bias": False, "norm_eps": 1e-2},
    "mistral": {"windows": (), "activation": "gelu_tanh"},
    "mixtral": {"moe": {"top_k": 1, "renormalise": False}, "windows": ()},
    "qwen2": {"qkv_bias": False, "windows": (-1, 47, 47)},
    "qwen2_moe": {"moe": {"renormalise": True, "shared_gate": False, "shared_ffn": 0}, "qkv_bias": False, "windows": ()},
    "qwen3": {"qk_norm": False, "attention_scale": 1.0},
    "qwen3_moe": {"moe": {"renormalise": False, "top_k": 2}, "qk_norm": False},
    "gemma2": {
        "attention_softcap": 0.0,
        "logit_softcap": 0.0,
        "windows": (-1, 48, -1),
        "embedding_scale": 1.0,
        "norms_around": False,
        "activation": "silu",
        "attention_scale": 0.25,
    },
    "gemma3_text": {"local_rope": None, "qk_norm": False, "windows": ()},
}
"""By family, what a config must not lose: each alone is far outside the tolerance."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("families")

    def folder(family: str) -> Path:
        return root / family if (root / family).exists() else write_tiny_model(root / family, family)

    return folder


@pytest.fixture(scope="module")
def expected(folders) -> Callable[[str], np.ndarray]:
    """A family's reference logits of `prompt()`, computed once."""
    return cache(lambda family: reference_logits(folders(family), prompt()))


def prompt() -> list[int]:
    return torch.randint(3, 259, (LENGTH,), generator=torch.Generator().manual_seed(7)).tolist()


def exact(folder: Path, **options) -> LLM:
    return LLM(folder, codec="raw32", **options)


@torch.inference_mode()
def reference_logits(folder: Path, tokens: list[int]) -> np.ndarray:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    return model(torch.tensor([tokens])).logits[0].numpy()


def difference(ours: np.ndarray, expected: np.ndarray) -> float:
    """The largest of all logits', relative to the largest logit."""
    assert ours.shape == expected.shape
    return float(np.abs(ours - expected).max() / np.abs(expected).max())


def documented() -> dict[str, tuple[str, float]]:
    """The table of docs/models.md: by model_type, GGUF's name and the largest difference."""
    rows = re.findall(r"^\| [^|]+ \| (\w+) \| ([^|]+) \| [^|]+ \| ([\de-]+) \|$", DOCS.read_text(), re.MULTILINE)
    return {family: (gguf, float(found)) for family, gguf, found in rows}


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_match(folders, expected, family: str) -> None:
    found = difference(prompt_logits(exact(folders(family)), prompt()), expected(family))
    print(f"{family}: max difference of logits {found:.1e} of the largest")
    assert found <= documented()[family][1] <= MAX_DIFFERENCE


def test_the_table_lists_every_family() -> None:
    rows = documented()
    assert (
        rows.keys() - {family.name for family in families.ENCODERS}
        == {family.name for family in families.DECODERS}
        == {*FAMILIES, "grok1", "grok2"}
    )
    assert FAULTS.keys() == FAMILIES.keys()
    assert all(
        rows[family.name][0] == (family.gguf or ("(as llama)" if family.name == "mistral" else "no")) for family in families.DECODERS
    )


def each_fault() -> list[tuple[str, str, str]]:
    """Family, field of its config, and field of what that is, where the faults are inside it."""
    return [
        (family, field, inner)
        for family, faults in FAULTS.items()
        for field, wrong in faults.items()
        for inner in (wrong if isinstance(wrong, dict) else [""])
    ]


@pytest.mark.parametrize(("family", "field", "inner"), each_fault())
def test_a_planted_fault_is_seen(folders, expected, family: str, field: str, inner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_model(folders(family))
    wrong = FAULTS[family][field]
    if inner:
        wrong = replace(getattr(source.config, field), **{inner: wrong[inner]})
    source.config = replace(source.config, **{field: wrong})
    monkeypatch.setattr(llm_module, "open_model", lambda path: source)
    found = difference(prompt_logits(exact(folders(family)), prompt()), expected(family))
    assert found > 50 * MAX_DIFFERENCE, found


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_match(folders, family: str) -> None:
    """Decoded from the middle of a segment into the next."""
    ours = exact(folders(family)).generate([prompt()], SamplingParams(max_tokens=100, temperature=0.0, ignore_eos=True))[0].tokens
    best = reference_logits(folders(family), prompt() + ours)[LENGTH - 1 : -1].argmax(1)
    assert ours == best.tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_bits_do_not_depend_on_company(folders, family: str) -> None:
    check_matrix(folders(family), longest=200, count=8, backend="cpu")


@pytest.mark.parametrize("family", KEYS)
def test_gguf_files_hold_the_same_models(tmp_path: Path, family: str) -> None:
    """What a GGUF file does not state (the biases of q, k and v aside) is left at what its family has."""
    changes = {
        "gemma2": {"query_pre_attn_scalar": 16},
        "gemma3_text": {"query_pre_attn_scalar": 16},
        "llama": {"attention_bias": False},
        "mixtral": {"sliding_window": None},
        "qwen3_moe": {"mlp_only_layers": []},
    }
    switched_off = {"use_sliding_window": False} if family.startswith("qwen2") else {}
    folder = write_tiny_model(tmp_path / family, family, **changes.get(family, {}), **switched_off)
    of_folder, of_file = (prompt_logits(exact(path), prompt()) for path in (folder, write_gguf(tmp_path / "tiny.gguf", folder)))
    if family in ("llama", "mixtral"):  # their rows of q and k lie in another order
        assert difference(of_file, of_folder) <= MAX_DIFFERENCE
    else:
        assert np.array_equal(of_file, of_folder)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_weights_are_read_exactly(tmp_path: Path, dtype: torch.dtype) -> None:
    folder = write_tiny_model(tmp_path / "tiny", "gemma3_text", dtype=dtype)
    assert difference(prompt_logits(exact(folder), prompt()), reference_logits(folder, prompt())) <= MAX_DIFFERENCE


def test_the_reference_backend_agrees(folders) -> None:
    native, plain = (prompt_logits(exact(folders("gemma2"), backend=backend), prompt()[:140]) for backend in ("cpu", "ref"))
    assert difference(plain, native) <= MAX_DIFFERENCE


def test_heads_that_no_native_kernel_takes(tmp_path: Path) -> None:
    """Slow, but right: prefill, and decode steps that cannot be recorded."""
    folder = write_tiny_model(tmp_path / "odd", "llama", head_dim=24)
    ours = exact(folder).generate([prompt()[:140]], SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True))[0].tokens
    assert ours == reference_logits(folder, prompt()[:140] + ours)[139:-1].argmax(1).tolist()


def test_text_in_and_out(folders) -> None:
    llm = exact(folders("qwen3"))
    assert llm.tokenizer.vocab_size == VOCAB_SIZE
    assert llm.tokenizer.decode(llm.tokenizer.encode("Grüße, 你好")) == "Grüße, 你好"
    answer = llm.chat([{"role": "user", "content": "Hello"}], SamplingParams(max_tokens=8, temperature=0.0))
    assert answer.prompt[0] == 1  # <|im_start|>
    assert 1 <= len(answer.tokens) <= 8


HELLO = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize("family", FAMILIES)
def test_front_and_worker_take_a_folder(folders, family: str) -> None:
    """What a server's two processes do with it, in this one: the front reads it without torch, the worker warms its engine up."""
    opened, llm = read_model(str(folders(family))), LLM(folders(family))
    assert llm.engine.warm_up() > 0
    answer = llm.chat(HELLO, SamplingParams(max_tokens=8, temperature=0.0))
    assert opened.texts.template.render(HELLO) == answer.prompt
    assert opened.texts.tokenizer.encode("Grüße, 你好") == llm.tokenizer.encode("Grüße, 你好")
    assert opened.context == llm.engine.context


@pytest.mark.parametrize(
    "family", [family if family == "gemma3_text" else pytest.param(family, marks=pytest.mark.slow) for family in FAMILIES]
)
def test_a_folder_is_served(folders, family: str) -> None:
    """With its tokenizer and chat template; the answer is that of the batch API."""
    answer = LLM(folders(family)).chat(HELLO, SamplingParams(max_tokens=8, temperature=0.0))
    with model_server(folders(family)) as server:
        served = server.chat("Hello").json()
        assert served["choices"][0]["message"]["content"] == answer.text
        assert served["usage"]["prompt_tokens"] == len(answer.prompt)
