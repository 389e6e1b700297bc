"""A model with experts reads the weights of those that its rows chose, and of no others."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_families import prompt
from tiny_models import write_tiny_model

from pitstop import LLM, SamplingParams
from pitstop.models.plan import plan
from pitstop.ops.moe import cpu as moe_cpu
from pitstop.ops.moe import experts as moe_experts

EXPERTS, TOP = 8, 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("experts") / "mixtral", "mixtral", num_local_experts=EXPERTS, sliding_window=None)


def bytes_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of experts' weights, by call, from now on."""
    found, linear = [], moe_experts.linear
    monkeypatch.setattr(moe_experts, "linear", lambda x, weight: found.append(weight.data.nbytes) or linear(x, weight))
    return found


def test_one_stream_reads_two_of_eight_experts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM(folder)
    found = bytes_read(monkeypatch)
    llm.generate([prompt()[:1]], SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True))
    a_token = sum(found) / 5
    every = plan(str(folder)).by_part()["experts"]
    print(f"experts: {a_token:,.0f} of {every:,} bytes a token")
    assert a_token == every * TOP / EXPERTS


def test_a_batch_reads_each_expert_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM(folder)
    found, chosen = bytes_read(monkeypatch), []
    mix = moe_cpu.mix
    monkeypatch.setattr("pitstop.ops.moe._mix", lambda x, ids, *rest: chosen.append(len(ids.unique())) or mix(x, ids, *rest))
    llm.generate([prompt()[i : i + 3] for i in range(6)], SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True))
    c = llm.engine._runner._model.config
    assert sum(found) == sum(chosen) * 3 * c.moe.ffn * c.width * 4
    assert TOP < max(chosen) <= EXPERTS
