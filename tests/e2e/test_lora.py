"""LoRA adapters: the numbers of a merged model, the bits of each request alone, and no prefix that another adapter has computed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from logits import prompt_logits
from lora_adapters import merge, write_adapter
from test_bit_exact import Answers, bits, forget, memory_for, prompts_and_params
from tiny_models import write_tiny_model
from to_gguf import write_gguf
from toy_gguf import write_toy_gguf

from pitstop import LLM
from pitstop.engine.graphs import OFTEN, DecodeGraphs
from pitstop.engine.runner import Runner
from pitstop.errors import InvalidRequest, ModelNotFound
from pitstop.kv.prefix import PrefixIndex
from pitstop.models.lora import weights
from pitstop.models.lora.weights import Run
from pitstop.models.weights.source import open_model
from pitstop.types import Request, SamplingParams

MAX_DIFFERENCE = 2e-5
"""Of logits, relative to the largest: fp32 rounding in another order of summation, as between families and their references."""

LENGTH = 200


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("models")

    def made(family: str) -> Path:
        changes = {"attention_bias": False} if family == "llama" else {}  # GGUF files of Llamas have none
        return root / family if (root / family).exists() else write_tiny_model(root / family, family, **changes)

    return made


def tokens(seed: int = 7, count: int = LENGTH) -> list[int]:
    return torch.randint(3, 259, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def logits(llm: LLM, prompt: list[int], name: str) -> np.ndarray:
    """Of every position, with the adapter."""
    adapter, submit = llm._adapters[name].id, llm.engine.submit

    def adapted(request: Request) -> None:
        submit(Request(id=request.id, prompt=request.prompt, params=request.params, adapter=adapter))

    llm.engine.submit = adapted
    try:
        return prompt_logits(llm, prompt)
    finally:
        llm.engine.submit = submit


def difference(ours: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(ours - expected).max() / np.abs(expected).max())


CASES = [
    ("llama", {"rank": 4}),
    ("llama", {"rank": 8, "alpha": 16, "use_rslora": True, "parts": ("attn_q", "attn_v")}),
    ("qwen3", {"rank": 3, "alpha": 7, "parts": ("attn_k", "ffn_up", "ffn_down")}),
    ("gemma2", {"rank": 16, "dtype": np.float16}),
    ("qwen3_moe", {"rank": 4}),  # attention, and the one dense layer
]
NOT_IN_GGUF = {("gemma2", "gguf"), ("qwen3_moe", "gguf")}
"""These tiny models state what has no key there."""


@pytest.mark.parametrize(
    ("family", "options", "stored"),
    [(*case, stored) for case in CASES for stored in ("folder", "gguf") if (case[0], stored) not in NOT_IN_GGUF],
)
def test_an_adapter_equals_the_merged_model(folder, tmp_path: Path, family: str, options: dict, stored: str) -> None:
    """q and k of a Llama lie otherwise in a GGUF file than in the folder: the adapter follows."""
    model = folder(family)
    adapter = write_adapter(tmp_path / "adapter", open_model(model).config, 3, **options)
    merged = merge(model, adapter, tmp_path / "merged")
    if stored == "gguf":
        model, merged = (write_gguf(tmp_path / f"{path.name}.gguf", path) for path in (model, merged))
    prompt = tokens()
    llm = LLM(model, codec="raw32", lora={"mine": adapter})
    expected, base = prompt_logits(LLM(merged, codec="raw32"), prompt), prompt_logits(llm, prompt)
    assert difference(logits(llm, prompt, "mine"), expected) < MAX_DIFFERENCE
    assert difference(base, expected) > 0.05, "the adapter changes nothing: this proves nothing"


def test_an_adapter_equals_peft(folder, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model, prompt = folder("llama"), tokens()
    adapter = write_adapter(tmp_path / "adapter", open_model(model).config, 5, rank=6, alpha=9, use_rslora=True)
    theirs = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
    theirs = PeftModel.from_pretrained(theirs, adapter).eval()
    with torch.inference_mode():
        expected = theirs(torch.tensor([prompt])).logits[0].numpy()
    assert difference(logits(LLM(model, codec="raw32", lora={"mine": adapter}), prompt, "mine"), expected) < MAX_DIFFERENCE


def test_what_peft_saves_is_read(folder, tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model, prompt = folder("qwen2"), tokens()
    theirs = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
    theirs = get_peft_model(theirs, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"))
    with torch.no_grad():
        for name, weight in theirs.named_parameters():
            if "lora_" in name:
                weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(len(name))) * 0.1)
    theirs.save_pretrained(tmp_path / "adapter")
    with torch.inference_mode():
        expected = theirs.eval()(torch.tensor([prompt])).logits[0].numpy()
    ours = logits(LLM(model, codec="raw32", lora={"mine": tmp_path / "adapter"}), prompt, "mine")
    assert difference(ours, expected) < MAX_DIFFERENCE


# Bits


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_gguf(tmp_path_factory.mktemp("toy") / "toy.gguf", tied=False)


@pytest.fixture(scope="module")
def pair(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two adapters of different ranks, types and targets."""
    root, config = tmp_path_factory.mktemp("adapters"), open_model(toy).config
    return {
        "one": write_adapter(root / "one", config, 1),
        "two": write_adapter(root / "two", config, 2, rank=19, alpha=7, dtype=np.float16, parts=("attn_q", "attn_v", "ffn_down")),
    }


def mixed(count: int) -> list[str | None]:
    return [(None, "one", "two", "two", "one")[index % 5] for index in range(count)]


def alone(llm: LLM, prompts: list, params: list, names: list) -> Answers:
    """Each request alone, with a cold cache."""
    answers: Answers = []
    for prompt, param, name in zip(prompts, params, names, strict=True):
        answers += bits(llm.generate([prompt], param, adapter=name))
        forget(llm)
    return answers


def check_mixed(path: Path, pair: dict[str, Path], longest: int, count: int, **options) -> None:
    """Requests of the base and of two adapters in one batch, in every way, against each alone."""
    single = LLM(path, max_running=1, lora=pair, **options)
    prompts, params = prompts_and_params(single.engine.vocab_size, longest, count)
    names = mixed(count)
    expected = alone(single, prompts, params, names)
    base = [i for i, name in enumerate(names) if name is None]
    without = LLM(path, **options)
    same = bits(without.generate([prompts[i] for i in base], [params[i] for i in base]))
    assert same == [expected[i] for i in base], "requests of the base, where no adapter is loaded"
    llm = LLM(path, lora=pair, **options)
    for way in ("cold", "warm"):
        outputs = llm.generate(prompts, params, adapter=names)
        assert bits(outputs) == expected, f"a batch of {count}, {way} prefix cache"
        llm.engine.check()
    assert sum(output.cached_tokens for output in outputs) > 0.5 * sum(map(len, prompts)), "the prefix cache was not used"
    for chunk in (16, 64):
        assert bits(LLM(path, prefill_chunk=chunk, lora=pair, **options).generate(prompts, params, adapter=names)) == expected, chunk
    memory = memory_for(single, tokens=longest + 12, tails=7)
    llm = LLM(path, memory=memory, max_running=4, prefill_chunk=128, cached_tails=0, lora=pair, **options)
    assert bits(llm.generate(prompts, params, adapter=names)) == expected, "with preemption"
    assert llm.engine.scheduler.preemptions > 0, "nothing was preempted: the row proves nothing"
    llm.engine.check()


@pytest.mark.parametrize("backend", ["cpu", pytest.param("ref", marks=pytest.mark.slow)])  # test_accumulate.py has both
def test_two_adapters_and_the_base_equal_each_alone(toy: Path, pair: dict[str, Path], backend: str) -> None:
    native = backend == "cpu"
    check_mixed(toy, pair, longest=300 if native else 140, count=20 if native else 6, backend=backend)


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(600)
def test_two_adapters_and_the_base_equal_each_alone_on_the_default_model(model_path: Path, tmp_path: Path) -> None:
    config = open_model(model_path).config
    pair = {name: write_adapter(tmp_path / name, config, seed, rank=8, strength=0.2) for seed, name in enumerate(("one", "two"))}
    single = LLM(model_path, max_running=1, lora=pair, backend="cpu")
    prompts, params = prompts_and_params(single.engine.vocab_size, 200, 8)
    names = mixed(8)
    expected = alone(single, prompts, params, names)
    llm = LLM(model_path, lora=pair, backend="cpu", prefill_chunk=100)
    assert bits(llm.generate(prompts, params, adapter=names)) == expected
    assert bits(llm.generate(prompts, params, adapter=names)) == expected, "with a warm prefix cache"
    assert expected[1] != bits(llm.generate([prompts[1]], params[1]))[0], "the adapter changes nothing: this proves nothing"


def test_steady_steps_are_recorded_and_give_the_same_bits(toy: Path, pair: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    prompts, names = [tokens(seed, 20) for seed in range(5)], mixed(5)
    params = SamplingParams(max_tokens=3 * OFTEN, seed=3, logprobs=2, ignore_eos=True)
    llm = LLM(toy, lora=pair, backend="cpu")
    recorded = bits(llm.generate(prompts, params, adapter=names))
    graphs = llm.engine._runner._decode
    assert any(rows == 5 for rows, *_ in graphs._adapted)
    assert bits(llm.generate(prompts, params, adapter=names)) == recorded
    llm.unload_adapter("one")
    assert not graphs._adapted, "weights that are gone are still in graphs"
    monkeypatch.setattr(DecodeGraphs, "usable", lambda device: False)
    assert bits(LLM(toy, lora=pair, backend="cpu").generate(prompts, params, adapter=names)) == recorded


def test_another_engine_goes_on_with_an_adapter(toy: Path, pair: dict[str, Path]) -> None:
    prompts, params = prompts_and_params(259, 300, 6)
    first, second = (LLM(toy, lora=pair, backend="cpu") for _ in range(2))
    names = mixed(6)
    expected = bits(first.generate(prompts, params, adapter=names))
    for index, (prompt, param, name) in enumerate(zip(prompts, params, names, strict=True)):
        adapter = second._adapters[name].id if name else ""
        request = Request(id=str(index), prompt=prompt, params=param, emitted=expected[index][0][:5], adapter=adapter)
        second.engine.submit(request)
    rest: dict[str, list[int]] = {}
    while second.engine.busy:
        for output in second.engine.step():
            rest.setdefault(output.id, []).extend(output.tokens)
    assert [rest[str(index)] for index in range(6)] == [answer[5:] for answer, _ in expected]


def test_an_adapter_is_loaded_layer_by_layer_between_steps(toy: Path, pair: dict[str, Path]) -> None:
    llm = LLM(toy, backend="cpu")
    engine, prompt = llm.engine, tokens(count=30)
    params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    expected = bits(llm.generate([prompt], params))[0][0]
    adapter = LLM(toy, lora=pair)._adapters["one"]
    engine.submit(Request(id="x", prompt=prompt, params=params))
    engine.adapters.begin(adapter)
    answer, told = [], []
    while engine.busy:
        answer += [token for output in engine.step() for token in output.tokens]
        told.append([state.id for state in engine.adapters.advance()])
    assert answer == expected
    assert told == [[], [], [adapter.id]] + [[]] * 5, "two layers, then it is there"


# Prefixes


def test_a_changed_adapter_of_the_same_name_hits_no_old_prefix(toy: Path, pair: dict[str, Path]) -> None:
    llm, prompt = LLM(toy, lora={"x": pair["one"]}, backend="cpu"), tokens(count=300)
    params = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True, logprobs=1)
    first = llm.generate([prompt], params, adapter="x")
    assert llm.generate([prompt], params, adapter="x")[0].cached_tokens > 250
    pages = llm.engine.stats().pages_cached
    assert pages > 0
    llm.load_adapter("x", pair["two"])
    assert llm.engine.stats().pages_cached == 0, "what the old one has computed is freed with it"
    changed = llm.generate([prompt], params, adapter="x")
    assert changed[0].cached_tokens == 0
    assert bits(changed) == bits(LLM(toy, lora={"x": pair["two"]}, backend="cpu").generate([prompt], params, adapter="x"))
    assert bits(changed)[0] != bits(first)[0]
    llm.engine.check()
    llm.unload_adapter("x")
    with pytest.raises(ModelNotFound):
        llm.generate([prompt], params, adapter="x")
    assert llm.engine.stats().pages_cached == 0


def test_an_unloaded_adapter_ends_what_still_uses_it_and_nothing_is_lost(toy: Path, pair: dict[str, Path]) -> None:
    """The front waits for them; this is the engine's own line of defence."""
    llm = LLM(toy, lora=pair, backend="cpu", prefill_chunk=64)
    adapter = llm._adapters["one"]
    for name, used in (("a", adapter.id), ("b", "")):
        llm.engine.submit(Request(id=name, prompt=tokens(count=150), params=SamplingParams(max_tokens=4), adapter=used))
    llm.engine.step()
    (output,) = llm.engine.unload(adapter)
    assert (output.id, output.finish, output.message) == ("a", "error", "the adapter one was unloaded")
    llm.engine.check()
    with pytest.raises(InvalidRequest, match="is not loaded"):
        llm.engine.submit(Request(id="c", prompt=[5], params=SamplingParams(), adapter=adapter.id))
    while llm.engine.busy:
        llm.engine.step()
        llm.engine.check()


def test_a_file_that_has_changed_since_is_refused(toy: Path, tmp_path: Path) -> None:
    config = open_model(toy).config
    llm = LLM(toy, lora={"x": write_adapter(tmp_path / "x", config, 1)})
    adapter = llm._adapters["x"]
    llm.unload_adapter("x")
    write_adapter(tmp_path / "x", config, 2)
    (state,) = llm.engine.adapters.load([adapter])
    assert (state.id, "has changed since it was loaded as x" in state.error) == (adapter.id, True)
    assert adapter.id not in llm.engine.adapters.ready


# Faults


def wrong_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row gets its neighbour's."""
    exact = Runner._runs

    def planted(self, spans):
        runs = exact(self, spans)
        if len({run.lora for run in runs}) < 2:
            return runs
        (lora, first, count), *others = runs
        other = next(run.lora for run in runs if run.lora is not lora)
        return (Run(other, first, 1), *([Run(lora, first + 1, count - 1)] if count > 1 else []), *others)

    monkeypatch.setattr(Runner, "_runs", planted)


def base_row_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    """An update reaches one row too far, and adds zero there but for the last bit."""
    exact = weights.add

    def planted(y, x, runs, layer, product):
        exact(y, x, runs, layer, product)
        for _, first, count in runs:
            if first + count < len(y) and product == "down":
                y[first + count] *= 1 + 2**-23

    monkeypatch.setattr(weights, "add", planted)
    monkeypatch.setattr(DecodeGraphs, "usable", lambda device: False)  # a graph would refuse the plant: it is made of torch calls


def prefix_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrefixIndex, "root_of", lambda self, adapter: self.root)


def rows_not_permuted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_pairs_side_by_side", lambda up, head_dim: up)


@pytest.mark.parametrize("fault", [wrong_adapter, base_row_touched, prefix_shared])
def test_a_planted_fault_is_seen(toy: Path, pair: dict[str, Path], monkeypatch: pytest.MonkeyPatch, fault: Callable) -> None:
    fault(monkeypatch)
    with pytest.raises(AssertionError, match=r"a batch of 8|requests of the base"):
        check_mixed(toy, pair, longest=150, count=8, backend="cpu")


def test_planted_rows_in_another_order_are_seen(folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows_not_permuted(monkeypatch)
    with pytest.raises(AssertionError):
        test_an_adapter_equals_the_merged_model(folder, tmp_path, "llama", {"rank": 4}, "gguf")
