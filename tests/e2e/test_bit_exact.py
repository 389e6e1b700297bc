"""Bit-exact answers: tokens and log-probabilities of a request do not depend on its batch, on chunking, on the prefix cache or on
preemption. The toy model runs the whole matrix on both backends, the default model on the native kernels."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from toy_gguf import write_toy_gguf

from pitstop import LLM, SamplingParams
from pitstop.engine.graphs import DecodeGraphs
from pitstop.engine.llm import RequestOutput
from pitstop.kv.capacity import page_bytes, tail_bytes
from pitstop.models import llama
from pitstop.ops import dispatch

TEXT = Path(__file__).read_text() + Path(pytest.__file__).read_text()
Answers = list[tuple[list[int], list]]


def prompts_and_params(vocab_size: int, longest: int, count: int = 32) -> tuple[list[list[int]], list[SamplingParams]]:
    """Very uneven lengths, 1 and `longest` among them; greedy and seeded sampling, with penalties here and there."""
    generator = torch.Generator().manual_seed(0)
    lengths = [1, 2, 127, 128, 129, longest, *torch.randint(3, longest, (count - 6,), generator=generator).tolist()]
    trunk = torch.randint(3, vocab_size, (longest,), generator=generator).tolist()
    prompts = [trunk[:length] if i % 2 else trunk[-length:] for i, length in enumerate(lengths)]
    params = [
        SamplingParams(max_tokens=12, temperature=(0.0, 1.0)[i % 2], seed=i, presence_penalty=0.3 * (i % 3), logprobs=5, ignore_eos=True)
        for i in range(count)
    ]
    return prompts, params


def bits(outputs: list[RequestOutput]) -> Answers:
    return [(choice.tokens, choice.logprobs) for output in outputs for choice in output.choices]


def one_by_one(llm: LLM, prompts: list, params: list) -> Answers:
    return [answer for prompt, param in zip(prompts, params, strict=True) for answer in bits(llm.generate([prompt], param))]


def check_matrix(path: Path, longest: int, count: int, **options) -> None:
    """Every row of the matrix against each request alone with a cold cache."""
    alone = LLM(path, prefix_cache=False, **options)
    prompts, params = prompts_and_params(alone.engine.vocab_size, longest, count)
    expected = one_by_one(alone, prompts, params)
    assert all(len(tokens) == 12 and len(scores) == 12 for tokens, scores in expected)
    assert bits(alone.generate(prompts, params)) == expected, f"a batch of {count}"
    for chunk in (16, 64, 512):
        llm = LLM(path, prefill_chunk=chunk, **options)
        assert bits(llm.generate(prompts, params)) == expected, f"chunk {chunk}, cold prefix cache"
        warm = llm.generate(prompts, params)
        assert sum(output.cached_tokens for output in warm) > 0.5 * sum(map(len, prompts)), "the prefix cache was not used"
        assert bits(warm) == expected, f"chunk {chunk}, warm prefix cache"
        llm.engine.check()
    llm = LLM(path, memory=memory_for(alone, pages=longest // 128, tails=7), max_running=4, prefill_chunk=128, cached_tails=0, **options)
    assert bits(llm.generate(prompts, params)) == expected, "with preemption"
    assert llm.engine.scheduler.preemptions > 0, "nothing was preempted: the row proves nothing"
    llm.engine.check()


def memory_for(llm: LLM, pages: int, tails: int) -> int:
    store = llm.engine._runner.store
    return tails * tail_bytes(store.codec, store.shape) + pages * page_bytes(store.codec, store.shape)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_gguf(tmp_path_factory.mktemp("toy") / "toy.gguf", tied=False)


@pytest.mark.parametrize("backend", ["cpu", "ref"])
def test_toy_matrix(toy: Path, backend: str) -> None:
    native = backend == "cpu"
    check_matrix(toy, longest=400 if native else 150, count=32 if native else 8, backend=backend)


@pytest.mark.parametrize(("kind", "activations"), [("Q4_1", "exact"), ("Q8_0", "int8"), ("F16", "exact")])
def test_toy_matrix_of_stored_kinds(tmp_path: Path, kind: str, activations: str) -> None:
    path = write_toy_gguf(tmp_path / "toy.gguf", kind, tied=False)
    check_matrix(path, longest=150, count=8, backend="cpu", activations=activations)


@pytest.mark.model
@pytest.mark.timeout(900)
def test_default_model_matrix(model_path: Path) -> None:
    check_matrix(model_path, longest=260, count=32, backend="cpu")


def test_two_threads_equal_one(toy: Path) -> None:
    prompts, params = prompts_and_params(259, 300, 12)
    answers = [bits(LLM(toy, threads=threads, backend="cpu").generate(prompts, params)) for threads in (1, 2)]
    assert answers[0] == answers[1]


def test_choices_of_one_request_equal_each_alone(toy: Path) -> None:
    llm = LLM(toy)
    params = SamplingParams(max_tokens=10, seed=5, logprobs=2, ignore_eos=True)
    together = bits(llm.generate([[7] * 200], params, n=4))
    assert len({tuple(tokens) for tokens, _ in together}) == 4, "choices must differ"
    assert bits(LLM(toy, prefix_cache=False).generate([[7] * 200], params, n=4)) == together


@pytest.mark.parametrize("fault", ["linear", "attention"])
def test_a_planted_batch_dependent_reduction_is_seen(toy: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """The matrix must fail when one op reduces in an order that depends on the batch."""
    from pitstop.codecs.segmented import Segmented

    monkeypatch.setattr(DecodeGraphs, "usable", lambda device: False)  # a graph would refuse the plant: it is made of torch calls
    exact_linear, exact_attend = llama.linear, Segmented.attend
    if fault == "linear":

        def planted(x, weight):
            if len(x) == 1:
                return exact_linear(x, weight)
            half = x.clone()
            half[:, ::2] = 0
            return exact_linear(half, weight) + exact_linear(x - half, weight)

        monkeypatch.setattr(llama, "linear", planted)
    else:

        def planted(self, q, *rest):
            return exact_attend(self, q, *rest) * (1 + 2**-23 * (len(q) > 1))

        monkeypatch.setattr(Segmented, "attend", planted)
    with pytest.raises(AssertionError, match=r"a batch of 8|chunk"):
        check_matrix(toy, longest=150, count=8, backend="cpu")


def test_decode_graphs_change_no_bit(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts, params = prompts_and_params(259, 300, 12)
    with_graphs = bits(LLM(toy).generate(prompts, params))
    monkeypatch.setattr(DecodeGraphs, "usable", lambda device: False)
    assert bits(LLM(toy).generate(prompts, params)) == with_graphs


def test_int8_activations_state_their_loss_at_start(toy: Path) -> None:
    notes = [any("int8 activations" in note for note in LLM(toy, activations=mode).engine.notes()) for mode in ("exact", "int8")]
    assert notes == [False, True]


def test_a_token_that_stops_is_counted_and_not_shown(toy: Path) -> None:
    """The batch API and the server take an answer apart by the same rule."""
    llm = LLM(toy)
    free = llm.generate([[65, 66]], SamplingParams(max_tokens=6, seed=1, ignore_eos=True))[0]
    stop = free.tokens[3]
    held = llm.generate([[65, 66]], SamplingParams(max_tokens=6, seed=1, ignore_eos=True, stop_token_ids=(stop,)))[0]
    end = free.tokens.index(stop) + 1
    assert (held.tokens, held.finish_reason) == (free.tokens[:end], "stop")
    assert held.text == llm.generate([[65, 66]], SamplingParams(max_tokens=end - 1, seed=1, ignore_eos=True))[0].text


def test_native_kernels_are_here() -> None:
    """Everything above would be slow, and proves less, on the fallback."""
    assert dispatch.native_missing() is None
