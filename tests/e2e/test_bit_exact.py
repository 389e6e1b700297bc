"""Bit-exact answers: tokens and log-probabilities of a request do not depend on its batch, on chunking, on the prefix cache or on
preemption. The toy model runs the whole matrix on both backends, the default model on the native kernels: a batch in chunks, and, among
the slow tests, all of it."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import pytest
import torch
from foresight import foresight
from toy_gguf import write_toy_gguf

from pitstop import LLM, SamplingParams
from pitstop.codecs.segmented import Segmented
from pitstop.engine.graphs import DecodeGraphs
from pitstop.engine.llm import RequestOutput
from pitstop.kv.capacity import page_bytes, stream_pages, tail_bytes
from pitstop.kv.prefix import Node
from pitstop.models import decoder
from pitstop.ops import dispatch
from pitstop.types import KVShape, Request

CODECS = ("int8", "int4", "adaptive8", "delta8")
Answers = list[tuple[list[int], list]]
Segments = dict[tuple[int, ...], list[torch.Tensor]]


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


def stored(llm: LLM) -> Segments:
    """The bytes of every sealed segment that the prefix index lists, all layers, by the tokens up to its end."""
    found: Segments = {}
    store = llm.engine._runner.store

    def walk(node: Node, before: tuple[int, ...]) -> None:
        for child in node.children.values():
            path = before + child.tokens
            sizes = written(store.codec, store.shape, len(child.pages))
            found[path] = [store.pages[:, page, :size].clone() for page, size in zip(child.pages, sizes, strict=True)]
            walk(child, path)

    walk(llm.engine._cache.index.root, ())
    return found


def written(codec: Segmented, shape: KVShape, pages: int) -> list[int]:
    """How many bytes of each of a segment's pages are its own."""
    if pages == 1:
        return [codec.page_bytes(shape)]
    return [shape.kv_heads * plane.bytes(shape.head_dim) for plane in codec.layout.first()]


def forget(llm: LLM) -> None:
    """Make the prefix cache cold."""
    index = llm.engine._cache.index
    while index.evict_tail() or index.evict_segment():
        pass


def same_bytes(llm: LLM, expected: Segments, least: int, way: str) -> None:
    """All that `llm` has sealed is as expected, and that is at least so many segments."""
    found = stored(llm)
    assert len(found) >= least, f"{way}: only {len(found)} segments are there to compare"
    wrong = [len(path) for path, pages in found.items() if not all(map(torch.equal, pages, expected[path]))]
    assert not wrong, f"{way}: segments that end at {wrong} are stored with other bits"
    llm.engine.check()


def one_by_one(llm: LLM, prompts: list, params: list) -> tuple[Answers, Segments]:
    """Each request alone, with a cold cache."""
    answers, segments = [], {}
    for prompt, param in zip(prompts, params, strict=True):
        answers += bits(llm.generate([prompt], param))
        segments |= stored(llm)
        forget(llm)
    return answers, segments


def check_matrix(path: Path, longest: int, count: int, **options) -> None:
    """Every row of the matrix against each request alone with a cold cache: answers and stored segments."""
    alone = LLM(path, max_running=1, **options)
    prompts, params = prompts_and_params(alone.engine.vocab_size, longest, count)
    expected, segments = one_by_one(alone, prompts, params)
    assert all(len(tokens) == 12 and len(scores) == 12 for tokens, scores in expected)
    most = len(segments)
    for chunk in (512, 64, 16):
        llm, way = LLM(path, prefill_chunk=chunk, **options), f"a batch of {count}, chunk {chunk}"
        assert bits(llm.generate(prompts, params)) == expected, f"{way}, cold prefix cache"
        same_bytes(llm, segments, most, f"{way}, cold prefix cache")
        warm = llm.generate(prompts, params)
        assert sum(output.cached_tokens for output in warm) > 0.5 * sum(map(len, prompts)), "the prefix cache was not used"
        assert bits(warm) == expected, f"{way}, warm prefix cache"
        same_bytes(llm, segments, most, f"{way}, warm prefix cache")
    with foresight(prompts, [tokens for tokens, _ in expected]):
        llm = LLM(path, speculate=4, **options)
        assert bits(llm.generate(prompts, params)) == expected, "with guesses"
        same_bytes(llm, segments, most, "with guesses")
        stats = llm.engine.stats()
        assert 0 < stats.accepted_tokens < stats.guessed_tokens, "with guesses: all or none came true"
    assert bits(LLM(path, prefix_cache=False, **options).generate(prompts, params)) == expected, "without a prefix cache"
    memory = memory_for(alone, tokens=longest + 12, tails=7)
    llm = LLM(path, memory=memory, max_running=4, prefill_chunk=128, cached_tails=0, **options)
    assert bits(llm.generate(prompts, params)) == expected, "with preemption"
    assert llm.engine.scheduler.preemptions > 0, "nothing was preempted: the row proves nothing"
    same_bytes(llm, segments, 1, "with preemption")


def memory_for(llm: LLM, tokens: int, tails: int) -> int:
    """Bytes for the sealed segments of one stream and so many tails."""
    codec, shape = llm.engine._runner.store.codec, llm.engine._runner.store.shape
    return tails * tail_bytes(codec, shape) + stream_pages(tokens, codec.lead_pages) * page_bytes(codec, shape)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_gguf(tmp_path_factory.mktemp("toy") / "toy.gguf", tied=False)


@pytest.fixture(scope="module")
def wide_toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With heads that every codec takes."""
    return write_toy_gguf(tmp_path_factory.mktemp("toy") / "wide.gguf", tied=False, head_dim=32)


@pytest.mark.parametrize("backend", ["cpu", "ref"])
def test_toy_matrix(toy: Path, backend: str) -> None:
    native = backend == "cpu"
    check_matrix(toy, longest=400 if native else 150, count=32 if native else 8, backend=backend)


@pytest.mark.parametrize(("kind", "activations"), [("Q4_1", "exact"), ("Q8_0", "int8"), ("F16", "exact")])
def test_toy_matrix_of_stored_kinds(tmp_path: Path, kind: str, activations: str) -> None:
    path = write_toy_gguf(tmp_path / "toy.gguf", kind, tied=False)
    check_matrix(path, longest=150, count=8, backend="cpu", activations=activations)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("backend", ["cpu", pytest.param("ref", marks=pytest.mark.slow)])  # test_kv_view.py has the reference of each
def test_toy_matrix_of_codecs(wide_toy: Path, codec: str, backend: str) -> None:
    native = backend == "cpu"
    check_matrix(wide_toy, longest=380 if native else 300, count=32 if native else 8, backend=backend, codec=codec, guard="off")


@pytest.mark.model
def test_default_model_in_a_batch_and_in_chunks(model_path: Path) -> None:
    """At real widths, what a batch-dependent op would change. The whole matrix takes two minutes, and fewer requests preempt nothing."""
    alone = LLM(model_path, max_running=1, backend="cpu")
    prompts, params = prompts_and_params(alone.engine.vocab_size, 200, 8)
    expected, segments = one_by_one(alone, prompts, params)
    llm = LLM(model_path, prefill_chunk=64, backend="cpu")
    for way in ("cold", "warm"):
        assert bits(llm.generate(prompts, params)) == expected, f"{way} prefix cache"
        same_bytes(llm, segments, len(segments), f"{way} prefix cache")
    assert len(segments) >= 4


@pytest.mark.model
@pytest.mark.timeout(900)
@pytest.mark.slow
def test_default_model_matrix(model_path: Path) -> None:
    check_matrix(model_path, longest=260, count=32, backend="cpu")


@pytest.mark.model
@pytest.mark.timeout(900)
@pytest.mark.slow
@pytest.mark.parametrize("codec", ["int8", "int4"])
def test_default_model_matrix_of_codecs(model_path: Path, codec: str) -> None:
    check_matrix(model_path, longest=300, count=8, backend="cpu", codec=codec, guard="off")


@pytest.mark.usefixtures("all_cores")
@pytest.mark.parametrize("codec", ["raw16", *CODECS])
def test_two_threads_equal_one(wide_toy: Path, codec: str) -> None:
    prompts, params = prompts_and_params(259, 300, 12)
    one, two = (LLM(wide_toy, threads=threads, backend="cpu", codec=codec, guard="off") for threads in (1, 2))
    assert bits(two.generate(prompts, params)) == bits(one.generate(prompts, params))
    same_bytes(two, segments := stored(one), len(segments), "two threads")


@pytest.mark.parametrize("codec", ["raw16", *CODECS])
def test_choices_of_one_request_equal_each_alone(wide_toy: Path, codec: str) -> None:
    options = {"codec": codec, "guard": "off", "backend": "cpu"}
    params = SamplingParams(max_tokens=70, seed=5, logprobs=2, ignore_eos=True)
    llm = LLM(wide_toy, **options)
    together = bits(llm.generate([[7] * 200], params, n=4))
    assert len({tuple(tokens) for tokens, _ in together}) == 4, "choices must differ"
    assert bits(LLM(wide_toy, prefix_cache=False, **options).generate([[7] * 200], params, n=4)) == together
    apart = LLM(wide_toy, max_running=1, **options)
    assert bits(apart.generate([[7] * 200], params, n=4)) == together
    same_bytes(llm, stored(apart), 5, "four choices at once")  # one segment in common, then one of each


@pytest.mark.parametrize("codec", ["raw16", *CODECS])
def test_a_neighbour_that_is_cancelled_leaves_no_trace(wide_toy: Path, codec: str) -> None:
    """Cancelled in its prefill, and while it answers; what it had sealed by then stays, and is right."""
    prompts, params = prompts_and_params(259, 400, 8)
    alone = LLM(wide_toy, max_running=1, backend="cpu", codec=codec, guard="off")
    expected, segments = one_by_one(alone, prompts, params)
    for steps in (1, 4, 12):
        engine = (llm := LLM(wide_toy, prefill_chunk=100, backend="cpu", codec=codec, guard="off")).engine
        for index, (prompt, param) in enumerate(zip(prompts, params, strict=True)):
            engine.submit(Request(id=str(index), prompt=prompt, params=param))
        answers: dict[str, tuple[list[int], list]] = {str(index): ([], []) for index in range(len(prompts))}
        for step in itertools.count():
            if step == steps:
                gone = [engine.cancel(name).id for name in ("1", "5") if len(answers[name][0]) < 12]
                engine.check()
            if not engine.busy:
                break
            for output in engine.step():
                answers[output.id][0].extend(output.tokens)
                answers[output.id][1].extend(output.logprobs or [])
        assert gone
        assert all(answers[str(i)] == answer for i, answer in enumerate(expected) if str(i) not in gone)
        same_bytes(llm, segments, 4, f"cancelled after {steps} steps")


def resumed(llm: LLM, prompts: list[list[int]], params: list[SamplingParams], expected: Answers, cut: int) -> Answers:
    """Answers that were begun elsewhere, `cut` tokens each, all at once: what came before, and what comes now."""
    answers = {str(index): (tokens[:cut], scores[:cut]) for index, (tokens, scores) in enumerate(expected)}
    for index, (prompt, param) in enumerate(zip(prompts, params, strict=True)):
        llm.engine.submit(Request(id=str(index), prompt=prompt, params=param, emitted=expected[index][0][:cut]))
    while llm.engine.busy:
        for output in llm.engine.step():
            answers[output.id] = answers[output.id][0] + output.tokens, answers[output.id][1] + (output.logprobs or [])
        llm.engine.check()
    return list(answers.values())


RESUMED = {"temperature": 0.9, "repetition_penalty": 1.1, "frequency_penalty": 0.4, "min_tokens": 9, "top_p": 0.95}


@pytest.mark.parametrize("codec", ["raw16", *CODECS])
@pytest.mark.parametrize("cut", [1, 5, 11])
def test_another_engine_goes_on_where_one_left_off(wide_toy: Path, codec: str, cut: int) -> None:
    prompts, params = prompts_and_params(259, 300, 8)
    params = [msgspec.structs.replace(param, **RESUMED, prompt_logprobs=1) if i % 3 else param for i, param in enumerate(params)]
    options = {"backend": "cpu", "codec": codec, "guard": "off"}
    llm = LLM(wide_toy, **options)
    expected = bits(llm.generate(prompts, params))
    assert resumed(LLM(wide_toy, **options), prompts, params, expected, cut) == expected
    assert resumed(llm, prompts, params, expected, cut) == expected, "with a warm prefix cache"


@pytest.mark.model
def test_another_engine_goes_on_with_the_default_model(model_path: Path) -> None:
    prompts, params = prompts_and_params(49152, 260, 6)
    params = [msgspec.structs.replace(param, **RESUMED) if i % 3 else param for i, param in enumerate(params)]
    expected = bits(LLM(model_path, backend="cpu").generate(prompts, params))
    assert resumed(LLM(model_path, backend="cpu", prefill_chunk=100), prompts, params, expected, 7) == expected


@pytest.mark.parametrize("fault", ["linear", "attention"])
def test_a_planted_batch_dependent_reduction_is_seen(toy: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """The matrix must fail when one op reduces in an order that depends on the batch."""
    from pitstop.codecs.segmented import Segmented

    monkeypatch.setattr(DecodeGraphs, "usable", lambda device: False)  # a graph would refuse the plant: it is made of torch calls
    exact_linear, exact_attend = decoder.linear, Segmented.attend
    if fault == "linear":

        def planted(x, weight):
            if len(x) == 1:
                return exact_linear(x, weight)
            half = x.clone()
            half[:, ::2] = 0
            return exact_linear(half, weight) + exact_linear(x - half, weight)

        monkeypatch.setattr(decoder, "linear", planted)
    else:

        def planted(self, q, *rest):
            return exact_attend(self, q, *rest) * (1 + 2**-23 * (len(q) > 1))

        monkeypatch.setattr(Segmented, "attend", planted)
    with pytest.raises(AssertionError, match=r"a batch of 8"):
        check_matrix(toy, longest=150, count=8, backend="cpu")


def test_a_planted_byte_that_depends_on_the_batch_is_seen(wide_toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the padding, which no answer shows: only the comparison of stored bytes can see it."""
    exact = Segmented.encode

    def planted(self, tails, pages, items, table):
        exact(self, tails, pages, items, table)
        pages[items[items[:, 4] >= 0, 4].long(), -1] = len(items)

    monkeypatch.setattr(Segmented, "encode", planted)
    with pytest.raises(AssertionError, match=r"a batch of 8, chunk 512, .*: segments that end at .* are stored with other bits"):
        check_matrix(wide_toy, longest=150, count=8, backend="ref", codec="adaptive8", guard="off")


@pytest.mark.parametrize("codec", ["raw16", *CODECS])
def test_decode_graphs_change_no_bit(wide_toy: Path, monkeypatch: pytest.MonkeyPatch, codec: str) -> None:
    prompts, params = prompts_and_params(259, 300, 12)
    recorded = LLM(wide_toy, backend="cpu", codec=codec, guard="off")
    with_graphs = bits(recorded.generate(prompts, params))
    monkeypatch.setattr(DecodeGraphs, "usable", lambda device: False)
    eager = LLM(wide_toy, backend="cpu", codec=codec, guard="off")
    assert bits(eager.generate(prompts, params)) == with_graphs
    same_bytes(recorded, segments := stored(eager), len(segments), "with graphs")


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
