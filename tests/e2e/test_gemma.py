"""A published base model that writes Chinese, under terms of its own and therefore only on request: PITSTOP_TEST_GEMMA names the GGUF file.

docs/models.md says where it comes from.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from servers import Server, model_server

from pitstop import LLM, SamplingParams

FILE = os.environ.get("PITSTOP_TEST_GEMMA")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FILE, reason="on request: PITSTOP_TEST_GEMMA names the GGUF file (docs/models.md)"),
    pytest.mark.timeout(900),
]

SAMPLING = {"max_tokens": 90, "temperature": 0.7, "top_p": 0.9, "frequency_penalty": 0.5, "seed": 1}


@pytest.fixture(scope="module")
def gemma() -> Iterator[Server]:
    with model_server(Path(FILE), "--context", "2048") as server:
        yield server


def share_of_han(text: str) -> float:
    letters = [letter for letter in text if letter.isalnum()]
    return sum("一" <= letter <= "鿿" for letter in letters) / len(letters)


def distinct(text: str) -> float:
    """Share of runs of four characters that are not there twice: a text that repeats itself comes down to few."""
    runs = [text[at : at + 4] for at in range(len(text) - 3)]
    return len(set(runs)) / len(runs)


@pytest.mark.parametrize("prompt", ["人工智能是指", "我的家乡在中国南方的一个小镇，"])
def test_fluent_chinese_through_the_server(gemma: Server, prompt: str) -> None:
    text = gemma.complete(prompt, **SAMPLING).json()["choices"][0]["text"]
    print(prompt + text)
    assert share_of_han(text) > 0.8
    assert "\ufffd" not in text
    assert distinct(text) > 0.75
    assert gemma.complete(prompt, **SAMPLING).json()["choices"][0]["text"] == text


def test_a_base_model_has_no_chat(gemma: Server) -> None:
    answer = gemma.chat("你好")
    assert answer.status_code == 400
    assert "no chat template" in answer.json()["error"]["message"]


@torch.inference_mode()
def test_greedy_tokens_are_the_reference_s() -> None:
    """It repeats itself, and so does transformers with the same weights in fp32."""
    from transformers import AutoModelForCausalLM

    path = Path(FILE)
    reference = AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype=torch.float32).eval()
    llm = LLM(path, context=1024)
    for prompt in ("中国的首都是", "人工智能是指", "问题：为什么天空是蓝色的？\n回答："):
        ours = llm.generate([prompt], SamplingParams(max_tokens=80, temperature=0.0, ignore_eos=True))[0]
        logits = reference(torch.tensor([ours.prompt + ours.tokens])).logits[0, len(ours.prompt) - 1 : -1]
        assert logits.argmax(1).tolist() == ours.tokens
