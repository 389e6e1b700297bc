"""Decode steps as CUDA graphs have them: padded, captured on rows that are nobody's, replayed. The graphs are tape.py's, the kernels the
CPU's, so what is compared is compared to the bit; on a GPU the last test does the same with real ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch
from tape import TapeCapture
from toy_gguf import write_toy_gguf

from pitstop import LLM, SamplingParams
from pitstop.codecs.segmented import Segmented
from pitstop.engine import cuda_graphs, readback, sampler
from pitstop.engine.cuda_graphs import CudaGraphs, bucket
from pitstop.engine.graphs import DecodeGraphs
from pitstop.engine.runner import Runner, Running
from pitstop.kv.view import StepView
from pitstop.models.decoder import Decoder
from pitstop.ops.attention.launches import Launches
from pitstop.ops.attention.plan import Heads
from pitstop.types import Request, StepPlan

GREEDY = SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True)
DRAWN = (
    SamplingParams(max_tokens=30, temperature=1.0, seed=7, top_p=0.9, ignore_eos=True),
    SamplingParams(max_tokens=30, temperature=0.7, seed=8, top_k=20, ignore_eos=True),
    SamplingParams(max_tokens=30, temperature=1.3, seed=9, min_p=0.05, ignore_eos=True),
    SamplingParams(max_tokens=30, temperature=100.0, seed=-1, top_k=9, top_p=0.5, ignore_eos=True),
    SamplingParams(max_tokens=30, temperature=1.0, seed=7, ignore_eos=True),
)
OTHERS = (
    SamplingParams(max_tokens=30, temperature=1.0, seed=7, presence_penalty=0.7, ignore_eos=True),
    SamplingParams(max_tokens=30, temperature=1.0, seed=7, logprobs=3, ignore_eos=True),
    SamplingParams(max_tokens=30, temperature=0.0, prompt_logprobs=1, ignore_eos=True),
    SamplingParams(max_tokens=30, temperature=0.0, min_tokens=30, stop_token_ids=tuple(range(3, 200))),
    SamplingParams(max_tokens=30, temperature=0.0, logit_bias={9: 4.0}, ignore_eos=True),
)
OPTIONS = {"guard": "off", "memory": 64 << 20}


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of whose matrices are read by native kernels, and whose heads every codec takes."""
    return write_toy_gguf(tmp_path_factory.mktemp("toy") / "toy.gguf", "Q8_0", tied=False, head_dim=32)


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines take the CPU for a GPU."""
    monkeypatch.setattr(DecodeGraphs, "usable", staticmethod(lambda device: False))
    monkeypatch.setattr(CudaGraphs, "usable", staticmethod(lambda device: True))
    monkeypatch.setattr(cuda_graphs, "CudaCapture", TapeCapture)
    monkeypatch.setattr(readback, "chosen_on_device", lambda logits: True)


def prompts(count: int) -> list[list[int]]:
    """Of uneven lengths, some of which fill a segment while they answer."""
    generator = torch.Generator().manual_seed(1)
    lengths = [120, 1, 127, 250, 40, 128, 3, 101, 380, 9, 77, 200][:count]
    return [torch.randint(3, 259, (length,), generator=generator).tolist() for length in lengths]


def answers(llm: LLM, count: int, params: SamplingParams | list[SamplingParams] = GREEDY) -> list:
    outputs = llm.generate(prompts(count), params)
    llm.engine.check()
    return [(o.tokens, o.choices[0].logprobs, o.prompt_logprobs) for o in outputs]


def mixed(count: int) -> list[SamplingParams]:
    """Of four one is greedy, one is drawn, and two are chosen on the host."""
    kinds = (GREEDY,), OTHERS, DRAWN, OTHERS[::-1]
    return [kinds[i % 4][i // 4 % len(kinds[i % 4])] for i in range(count)]


def graphs(llm: LLM) -> CudaGraphs:
    found = llm.engine._runner._decode
    assert isinstance(found, CudaGraphs)
    return found


@pytest.fixture(scope="module")
def eager(toy: Path) -> Callable[..., list]:
    """Answers of engines as they serve on a CPU: made before anything is patched, and told that nothing is far."""
    engines = {codec: LLM(toy, codec=codec, **OPTIONS) for codec in ("raw16", "int8", "int4")}
    assert all(isinstance(llm.engine._runner._decode, DecodeGraphs) for llm in engines.values())

    def of(count: int, params: SamplingParams | list[SamplingParams] = GREEDY, codec: str = "raw16") -> list:
        with mock.patch.object(readback, "chosen_on_device", return_value=False):
            return answers(engines[codec], count, params)

    return of


@pytest.mark.usefixtures("captured")
@pytest.mark.parametrize("codec", ["raw16", "int8", "int4"])
def test_answers_are_those_of_eager_steps_in_any_bucket(toy: Path, eager: Callable[..., list], codec: str) -> None:
    llm = LLM(toy, codec=codec, max_running=11, **OPTIONS)
    for count in (1, 2, 3, 6, 9, 11):
        assert answers(llm, count, mixed(count)) == eager(count, mixed(count), codec), f"{count} streams"
    sizes = {room.rows for room in graphs(llm)._graphs}
    assert {1, 2, 4, 8, 11} == sizes, "the last bucket ends where the streams do"
    assert graphs(llm).recorded == len(sizes)
    assert min(graphs(llm)._capture.replays) > 5


def test_buckets() -> None:
    assert [bucket(rows) for rows in (1, 2, 3, 4, 5, 8, 9, 16, 17, 33)] == [1, 2, 4, 4, 8, 8, 16, 16, 24, 40]


@pytest.mark.usefixtures("captured")
def test_padding_writes_nowhere_but_in_its_own_slot(toy: Path) -> None:
    engine = LLM(toy, max_running=8, guard="off", memory=8 << 20).engine
    store, cache = engine._runner.store, engine._cache
    assert store.nobodys == cache.tails.total == store.tails.shape[1] - 1
    store.pages.fill_(255)
    store.tails.fill_(torch.nan)
    for number, prompt in enumerate(prompts(3)):
        engine.submit(Request(id=f"{number}", prompt=prompt, params=GREEDY))
    while engine.busy:
        engine.step()
        assert store.pages[:, cache.pages.touched :].eq(255).all()
        assert store.tails[:, cache.tails.touched : store.nobodys].isnan().all()
    own = store.tails[:, store.nobodys].float()
    assert own.isfinite().sum() == own.shape[0] * own.shape[1] * 2 * 32, "one position of each head is written, in keys and in values"


@pytest.mark.usefixtures("captured")
def test_tokens_are_chosen_on_the_device_and_nothing_else_comes_back(
    toy: Path, eager: Callable[..., list], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = [*DRAWN, GREEDY]
    expected, rows, download = (eager(6, mixed(6)), eager(3), eager(6, plain)), [], readback.download
    assert len({tuple(tokens) for tokens, *_ in expected[2]}) == 6
    llm = LLM(toy, **OPTIONS)
    monkeypatch.setattr(readback, "download", lambda values: rows.append((values.dtype, len(values))) or download(values))
    assert answers(llm, 6, mixed(6)) == expected[0]
    assert max(count for dtype, count in rows if dtype is torch.float32) == 3, "three of six rows, and no states"
    monkeypatch.setattr(sampler, "sample", None)
    rows.clear()
    assert answers(llm, 3) == expected[1]
    assert answers(llm, 6, plain) == expected[2]
    assert not any(count for dtype, count in rows if dtype is torch.float32)


@pytest.mark.usefixtures("captured")
def test_the_next_step_is_launched_before_this_one_is_waited_for(
    toy: Path, eager: Callable[..., list], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, events = eager(3), []
    launch, finish = Runner.launch, Runner.finish
    monkeypatch.setattr(Runner, "launch", lambda self, plan, before=None: events.append("launch") or launch(self, plan, before))
    monkeypatch.setattr(Runner, "finish", lambda self, running: events.append("finish") or finish(self, running))
    llm = LLM(toy, prefix_cache=False, **OPTIONS)
    assert answers(llm, 3) == expected
    assert events == ["launch", "finish", "launch", *["launch", "finish"] * 28, "finish"], "the prompts, then 29 steps"
    events.clear()
    answers(llm, 3, [GREEDY, *DRAWN[:2]])
    assert events == ["launch", "finish", "launch", *["launch", "finish"] * 28, "finish"]
    events.clear()
    answers(llm, 3, OTHERS[1])
    assert events == ["launch", "finish"] * 30, "whose rows of logits come back"


@pytest.mark.usefixtures("captured")
def test_answers_that_end_while_a_step_is_on_its_way(toy: Path, eager: Callable[..., list]) -> None:
    """By a token, one after the other; what each leaves behind serves those that come later."""
    stops = [{tokens[at]} for (tokens, *_), at in zip(eager(6), (3, 9, 9, 14, 20, 29), strict=True)]
    params = [SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True, stop_token_ids=tuple(stop)) for stop in stops]
    llm = LLM(toy, **OPTIONS)
    assert answers(llm, 6, params) == eager(6, params)
    assert answers(llm, 6) == eager(6)


@pytest.mark.usefixtures("captured")
@pytest.mark.parametrize("fault", ["rows of others", "tokens of the step before", "draws of the step before", "draws of others"])
def test_faults_of_a_step_that_follows_show(toy: Path, eager: Callable[..., list], monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    launch, draws, choose = Runner.launch, readback._draws, readback._chosen
    if fault == "draws of the step before":
        monkeypatch.setattr(readback, "_draws", lambda span: draws(replace(span, start=span.start - 1)))
    elif fault == "draws of others":
        monkeypatch.setattr(readback, "_chosen", lambda logits, draws: choose(logits, draws[::-1]))

    def planted(self: Runner, plan: StepPlan, before: Running | None = None) -> Running:
        if before is not None and fault == "rows of others":
            plan.follows.reverse()
        elif before is not None and fault == "tokens of the step before":
            before.results.chosen = self._view.tokens.clone()
        return launch(self, plan, before)

    expected = eager(3, list(DRAWN[:3]))
    llm = LLM(toy, prefix_cache=False, **OPTIONS)
    monkeypatch.setattr(Runner, "launch", planted)
    assert answers(llm, 3, list(DRAWN[:3])) != expected


def test_which_tokens_are_chosen_on_the_device() -> None:
    assert all(sampler.plain(params, 0) for params in (GREEDY, *DRAWN))
    late = SamplingParams(max_tokens=30, temperature=1.0, min_tokens=30)
    assert not sampler.plain(late, 29)
    assert sampler.plain(late, 30), "after min_tokens the end is free"
    for asked in ({"grammar": "root ::= [a-z]"}, {"repetition_penalty": 1.2}, {"frequency_penalty": 0.1}, {"presence_penalty": 1}):
        assert not sampler.plain(SamplingParams(**asked), 0)
    assert not sampler.plain(SamplingParams(logit_bias={3: 1.0}), 0)


@pytest.mark.usefixtures("captured")
def test_guesses_and_what_else_is_no_plain_decode_runs_as_it_is(toy: Path, eager: Callable[..., list]) -> None:
    llm = LLM(toy, speculate=4, **OPTIONS)
    repeated = [[5, 6, 7, 8] * 30] * 3
    params = [GREEDY, DRAWN[0], SamplingParams(max_tokens=30, temperature=0.01, seed=1, ignore_eos=True)]
    with mock.patch.object(CudaGraphs, "usable", return_value=False), mock.patch.object(readback, "chosen_on_device", return_value=False):
        expected = [output.tokens for output in LLM(toy, **OPTIONS).generate(repeated, params)]
    assert [output.tokens for output in llm.generate(repeated, params)] == expected
    assert llm.engine.stats().guessed_tokens > 0


@pytest.mark.usefixtures("captured")
@pytest.mark.parametrize("fault", ["refuses", "reads back", "makes it on the host"])
def test_what_cannot_be_captured_runs_as_it_is_and_says_so_once(
    toy: Path, eager: Callable[..., list], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    embed, expected = Decoder.embed, {count: eager(count) for count in (2, 3)}
    reason = {
        "refuses": "no graphs here",
        "reads back": "a number is read back",
        "makes it on the host": "a replay differs from the eager run",
    }[fault]
    if fault == "refuses":

        def refuse(self: TapeCapture, function: Callable[[], None]) -> Callable[[], None]:
            function()
            raise RuntimeError("no graphs here\nand more")

        monkeypatch.setattr(TapeCapture, "__call__", refuse)
    elif fault == "reads back":
        monkeypatch.setattr(Decoder, "embed", lambda self, tokens: embed(self, tokens) if int(tokens.max()) < 999 else None)
    else:
        monkeypatch.setattr(Decoder, "embed", lambda self, tokens: embed(self, torch.tensor(tokens.tolist())))
    llm = LLM(toy, **OPTIONS)
    for count in expected:
        assert answers(llm, count) == expected[count]
    assert [record.message for record in caplog.records if reason in record.message] == [caplog.records[-1].message]
    assert len(caplog.records) == 1
    assert caplog.records[0].message.startswith("decode steps are not recorded: ")
    assert "\n" not in caplog.records[0].message
    assert graphs(llm).recorded == 1


FAULTS = ("a padded row appends to a tail in use", "stale positions", "tokens of the step before", "a stale table", "no padding")


@pytest.mark.usefixtures("captured")
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_show(toy: Path, eager: Callable[..., list], monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """The answers of three streams, one of which fills a segment."""
    load = StepView.load
    stale = {FAULTS[1]: "_positions", FAULTS[2]: "_tokens", FAULTS[3]: "_table"}
    llm = LLM(toy, max_running=4, prefix_cache=False, **OPTIONS)
    if fault in stale:

        def planted(self: StepView, plan, room=None) -> None:
            mirror = getattr(self, stale[fault])
            before = mirror.host.copy()
            load(self, plan, room)
            if room is not None and plan.spans:
                mirror.host[:] = before

        monkeypatch.setattr(StepView, "load", planted)
    elif fault == FAULTS[0]:
        llm.engine._runner.store.nobodys = 0
    else:
        monkeypatch.setattr(StepView, "load", lambda self, plan, room=None: load(self, plan))
    expected = eager(3, OTHERS[1])
    try:
        found = answers(llm, 3, OTHERS[1])
    except (ValueError, IndexError, RuntimeError):  # stale numbers may lie outside
        return
    assert found != expected


def launched(monkeypatch: pytest.MonkeyPatch, toy: Path, **options) -> LLM:
    """An engine whose view makes launches, of one block a segment at most, though its attention is the CPU's."""
    attend = Segmented.attend
    monkeypatch.setattr(Segmented, "attend", lambda self, *arguments: attend(self, *arguments[:-1]))
    monkeypatch.setattr(
        Segmented,
        "launches",
        lambda self, shape, heads, windows, device: Launches(self.layout, Heads(heads, shape.kv_heads, 64), windows, torch.device(device)),
    )
    return LLM(toy, prefix_cache=False, **OPTIONS, **options)


@pytest.mark.usefixtures("captured")
def test_a_graph_serves_as_long_as_the_streams_fit_its_launches(
    toy: Path, eager: Callable[..., list], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = launched(monkeypatch, toy)
    params = SamplingParams(max_tokens=300, temperature=0.0, ignore_eos=True)
    [grown] = llm.generate([prompts(1)[0]], params)
    units = [launch.sizes.units for room in graphs(llm)._graphs for launch in room.launches]
    assert units == [1, 2, 4], "one stream of up to 128, 256 and 512 tokens"
    assert graphs(llm).recorded == 3
    [again] = llm.generate([prompts(1)[0]], params)
    assert again.tokens == grown.tokens
    assert graphs(llm).recorded == 3
    assert grown.tokens[:30] == eager(1)[0][0]
    assert answers(llm, 3) == eager(3), "with a row that is nobody's"
    assert max(room.rows for room in graphs(llm)._graphs) == 4


@pytest.mark.usefixtures("captured")
def test_a_graph_beyond_its_length_is_refused(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sized = Launches.sized
    monkeypatch.setattr(Launches, "sized", lambda self, starts: sized(self, [min(start, 255) for start in starts]))
    llm = launched(monkeypatch, toy)
    assert len(llm.generate(prompts(1), GREEDY)[0].tokens) == 30, "150 tokens lie in two segments"
    with pytest.raises(ValueError, match="does not fit a launch"):
        llm.generate([prompts(4)[3]], GREEDY)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("codec", ["raw16", "int8", "int4"])
def test_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str) -> None:
    """Replays and launches that grow against eager steps, one stream and many; the memory that a start leaves."""
    path = write_toy_gguf(tmp_path / "toy.gguf", "F16", tied=False, head_dim=64)
    llm = LLM(path, device="cuda", codec=codec, guard="off")
    found = [answers(llm, count, mixed(count)) for count in (1, 3, 9)]
    assert not graphs(llm)._declined
    assert len(graphs(llm)._graphs) >= 3
    assert torch.cuda.mem_get_info()[0] > 256 << 20
    del llm
    monkeypatch.setattr(CudaGraphs, "usable", staticmethod(lambda device: False))
    monkeypatch.setattr(readback, "chosen_on_device", lambda logits: False)
    eager = LLM(path, device="cuda", codec=codec, guard="off", memory=1 << 30)
    assert [answers(eager, count, mixed(count)) for count in (1, 3, 9)] == found
