"""POST /admin/score on a toy, and on the default model: the bits of prefill and of decoding, whatever runs beside, whatever was cached."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from logits import kept_logits
from servers import Server, model_server
from toy_gguf import write_toy_gguf

from pitstop import LLM, SamplingParams
from pitstop.server.score import HEADER
from pitstop.types import Request

TEXT = (Path(__file__).parents[2] / "LICENSE").read_text()
LENGTH = 270


def scored(server: Server, prompt: list[int], start: int) -> np.ndarray:
    response = server.post("/admin/score", {"prompt": prompt, "start": start})
    assert response.status_code == 200, response.text
    vocabulary, rows = HEADER.unpack_from(response.content)[2:4]
    return np.frombuffer(response.content, "<f4", offset=HEADER.size).reshape(rows, vocabulary)


def in_process(model_path: Path, prompt: list[int], codec: str) -> tuple[np.ndarray, np.ndarray]:
    """Logits of every position of the prompt, and those that chose five more tokens."""
    llm = LLM(model_path, codec=codec, prefix_cache=False, max_running=1, guard="off")
    with kept_logits() as rows:
        params = SamplingParams(max_tokens=5, temperature=0, prompt_logprobs=0, ignore_eos=True)
        llm.engine.submit(Request(id="score", prompt=prompt, params=params))
        while llm.engine.busy:
            llm.engine.step()
    rows = np.concatenate(rows)
    return rows[: len(prompt)], rows[len(prompt) - 1 :]


def test_the_logits_are_those_of_prefill_and_of_decoding(tmp_path: Path):
    check(write_toy_gguf(tmp_path / "toy.gguf", tied=False, head_dim=32), "int4")


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(300)
@pytest.mark.parametrize("codec", ["raw16", "int4"])
def test_so_are_the_default_models(model_path: Path, codec: str):
    check(model_path, codec)


def check(model_path: Path, codec: str) -> None:
    with model_server(model_path, "--kv", codec, "--context", "1024", "--admin", "--kv-guard", "off") as server:
        prompt = server.post("/tokenize", {"prompt": TEXT}).json()["tokens"][:LENGTH]
        alone = server.complete(prompt[:50], max_tokens=60).json()["choices"][0]
        answer = server.complete(prompt, max_tokens=5, ignore_eos=True, logprobs=0).json()
        assert answer["usage"]["completion_tokens"] == 5
        assert server.complete(prompt, max_tokens=1).json()["usage"]["prompt_tokens_details"]["cached_tokens"] == LENGTH - 1
        with ThreadPoolExecutor(4) as threads:
            beside = [threads.submit(server.complete, prompt[:50], max_tokens=60) for _ in range(3)]
            found = scored(server, prompt, 0)
            assert all(answer.result().json()["choices"][0] == alone for answer in beside)
        prefilled, decoded = in_process(model_path, prompt, codec)
        assert np.array_equal(found, prefilled)
        assert np.array_equal(scored(server, prompt, 130), prefilled[130:])
        spoken = [int(row.argmax()) for row in decoded[:5]]
        assert np.array_equal(scored(server, prompt + spoken[:4], LENGTH - 1), decoded[:5])
