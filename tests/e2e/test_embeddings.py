"""Embeddings of encoders and decoders against transformers, and to the bit in any company; with the real client through the server."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from lora_adapters import merge, write_adapter
from sentence_folders import TEXTS
from servers import Server, model_server, refused
from test_bit_exact import memory_for
from tiny_encoders import CONTEXT, ENCODERS, pooled, reference, write_tiny_encoder
from tiny_models import write_tiny_model
from toy_gguf import write_toy_gguf

from pitstop import LLM, SamplingParams
from pitstop.engine import llm as llm_module
from pitstop.engine.runner import Runner
from pitstop.engine.scheduler import Sequence
from pitstop.errors import InvalidRequest
from pitstop.models import encoder as encoder_module
from pitstop.models import families
from pitstop.models.embedding import Embedding
from pitstop.models.weights.source import open_model
from pitstop.types import Request

DOCS = Path(__file__).resolve().parents[2] / "docs" / "models.md"
NEAR = 1e-5
"""Largest difference of a number of an embedding, whose length is 1, or of a hidden state, from transformers' own."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("encoders")

    def folder(family: str) -> Path:
        return root / family if (root / family).exists() else write_tiny_encoder(root / family, family)

    return folder


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_gguf(tmp_path_factory.mktemp("decoder") / "toy.gguf", tied=False)


def difference(folder: Path) -> float:
    """The largest between ours and transformers' embeddings and hidden states, over all texts."""
    llm = LLM(folder)
    tokens = [llm.tokenizer.encode_text(text) for text in TEXTS]
    hidden = llm.engine._model.forward(tokens)
    worst = 0.0
    for ours, vector, ids in zip(np.split(hidden, np.cumsum(list(map(len, tokens)))[:-1]), llm.embed(TEXTS), tokens, strict=True):
        theirs = reference(folder, ids)
        expected = pooled(theirs, llm.embedding.pooling, llm.embedding.normalize)
        worst = max(worst, float(np.abs(ours - theirs.numpy()).max()), float(np.abs(vector - expected.numpy()).max()))
    return worst


def documented() -> dict[str, float]:
    """The encoders of docs/models.md: model_type and largest difference."""
    rows = re.findall(r"^\| [^|]+ \| ([\w-]+) \| (?:mean|cls|last)[^|]* \| [^|]+ \| ([\de-]+) \|$", DOCS.read_text(), re.MULTILINE)
    return {family: float(found) for family, found in rows}


@pytest.mark.parametrize("family", ENCODERS)
def test_hidden_states_and_vectors_are_transformers_own(folders, family: str) -> None:
    found = difference(folders(family))
    print(f"{family}: max difference {found:.1e}")
    assert found <= documented()[family] <= NEAR


def test_the_table_lists_every_encoder() -> None:
    assert documented().keys() == {family.name for family in families.ENCODERS} == ENCODERS.keys()


FAULTS = [
    ("bert", "norm_eps", 1e-12),
    pytest.param("bert", "activation", "gelu_tanh", marks=pytest.mark.slow),
    pytest.param("bert", "first_position", 1, marks=pytest.mark.slow),
    pytest.param("bert", "heads", 2, marks=pytest.mark.slow),
    ("roberta", "activation", "gelu_erf"),
    ("xlm-roberta", "first_position", 0),
]


@pytest.mark.parametrize(("family", "field", "wrong"), FAULTS)
def test_a_planted_fault_is_seen(tmp_path: Path, family: str, field: str, wrong: object, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_tiny_encoder(tmp_path, family, max_position_embeddings=450)
    source = open_model(folder)
    source.config = replace(source.config, **{field: wrong})
    monkeypatch.setattr(llm_module, "open_model", lambda path: source)
    assert difference(folder) > 3 * NEAR


def test_a_forgotten_normalisation_is_seen(folders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Embedding, "finish", lambda embedding, vector, dimensions=None: vector)
    with pytest.raises(AssertionError):
        test_hidden_states_and_vectors_are_transformers_own(folders, "bert")


def test_torch_leaves_the_cores_to_the_kernels(folders, monkeypatch: pytest.MonkeyPatch) -> None:
    llm, seen, attention = LLM(folders("bert"), threads=2), [], encoder_module.full_attention
    monkeypatch.setattr(encoder_module, "full_attention", lambda *parts: seen.append(torch.get_num_threads()) or attention(*parts))
    llm.embed(TEXTS[:1])
    assert set(seen) == {1}
    assert torch.get_num_threads() == 2


def test_every_way_of_pooling(folders) -> None:
    llm = LLM(folders("bert"))
    assert llm.embedding == Embedding("mean", True)
    for pooling in ("mean", "cls", "last"):
        for normalize in (True, False):
            found = llm.embed(TEXTS[:4], Embedding(pooling, normalize))
            for text, vector in zip(TEXTS[:4], found, strict=True):
                expected = pooled(reference(folders("bert"), llm.tokenizer.encode_text(text)), pooling, normalize)
                assert np.abs(vector - expected.numpy()).max() < NEAR


def uneven(llm: LLM, longest: int) -> list[list[int]]:
    """Token ids of very uneven lengths."""
    draw = torch.Generator().manual_seed(5)
    lengths = [1, 2, 127, 128, 129, longest, 3, *torch.randint(1, longest, (9,), generator=draw).tolist()]
    return [torch.randint(5, llm.engine.vocab_size, (length,), generator=draw).tolist() for length in lengths]


def check_alone_and_together(folder: Path, backend: str) -> None:
    llm = LLM(folder, backend=backend)
    texts = uneven(llm, CONTEXT) if backend == "cpu" else uneven(llm, 20)[-5:]
    alone = [llm.embed([text])[0] for text in texts]
    for chunk, running, threads, way in ((64, 32, 2, 1), (100_000, 3, 1, -1), (100_000, 32, 2, -1)):
        other = LLM(folder, backend=backend, prefill_chunk=chunk, max_running=running, threads=threads)
        found = other.embed(texts[::way])
        wrong = [len(text) for text, ours, own in zip(texts[::way], found, alone[::way], strict=True) if not np.array_equal(ours, own)]
        assert not wrong, f"texts of {wrong} tokens have other bits in company"


@pytest.mark.usefixtures("all_cores")
@pytest.mark.parametrize("backend", ["cpu", "ref"])
def test_a_text_has_the_same_bits_alone_and_in_any_company(folders, backend: str) -> None:
    check_alone_and_together(folders("bert"), backend)


@pytest.mark.parametrize("fault", ["neighbours", "padding"])
def test_a_planted_leak_between_texts_is_seen(folders, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention that also sees a row of the next text, or padding up to the longest."""
    exact = encoder_module.full_attention

    def neighbours(q, k, v, lengths, scale):
        return exact(q, k, v, [sum(lengths)], scale) if len(lengths) > 1 else exact(q, k, v, lengths, scale)

    def padding(q, k, v, lengths, scale):
        longest = max(lengths)
        parts = [[torch.cat([rows, torch.zeros(longest - len(rows), *rows.shape[1:])]) for rows in x.split(lengths)] for x in (q, k, v)]
        whole = exact(*(torch.cat(rows) for rows in parts), [longest] * len(lengths), scale)
        return torch.cat([rows[:length] for rows, length in zip(whole.split(longest), lengths, strict=True)])

    monkeypatch.setattr(encoder_module, "full_attention", neighbours if fault == "neighbours" else padding)
    with pytest.raises(AssertionError, match="other bits in company"):
        check_alone_and_together(folders("bert"), "cpu")


# Decoders


@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3"])
def test_a_decoders_states_are_transformers_own(tmp_path: Path, family: str) -> None:
    from transformers import AutoModelForCausalLM

    folder = write_tiny_model(tmp_path, family)
    llm = LLM(folder, codec="raw32")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval().model
    for text in uneven(llm, 300)[:7]:
        with torch.inference_mode():
            hidden = model(torch.tensor([text])).last_hidden_state[0]
        for pooling in ("last", "mean"):
            for normalize in (True, False):
                expected = pooled(hidden, pooling, normalize)
                found = llm.embed([text], Embedding(pooling, normalize))[0]
                assert np.abs(found - expected.numpy()).max() < NEAR * max(1.0, float(expected.abs().max()))


def test_a_factor_on_logits_is_none_on_states(decoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = LLM(decoder).embed(TEXTS, Embedding("mean", False))
    source = open_model(decoder)
    source.config = replace(source.config, logit_scale=0.5)
    monkeypatch.setattr(llm_module, "open_model", lambda path: source)
    assert np.array_equal(LLM(decoder).embed(TEXTS, Embedding("mean", False)), plain)


def vectors(llm: LLM, texts: list[list[int]], pooling: str) -> list[bytes]:
    return [vector.tobytes() for vector in llm.embed(texts, Embedding(pooling))]


def check_decoder(path: Path, pooling: str, backend: str) -> None:
    """Alone with a cold cache; in a batch, in chunks, with a warm prefix cache, preempted."""
    alone = LLM(path, prefix_cache=False, max_running=1, backend=backend)
    texts = uneven(alone, 300) if backend == "cpu" else uneven(alone, 20)[-6:]
    texts += [[*text, 7, 8] for text in texts[2:6]]  # with beginnings that others have
    expected = [vectors(alone, [text], pooling)[0] for text in texts]
    for chunk in (16, 512):
        llm = LLM(path, prefill_chunk=chunk, backend=backend)
        assert vectors(llm, texts, pooling) == expected, f"chunk {chunk}"
        assert vectors(llm, texts, pooling) == expected, f"chunk {chunk}, warm"
        assert (llm.engine.scheduler.cached_tokens > 0) == (pooling == "last")
        llm.engine.check()


@pytest.mark.parametrize("backend", ["cpu", "ref"])
@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_a_decoders_vector_depends_on_its_text_alone(decoder: Path, pooling: str, backend: str) -> None:
    check_decoder(decoder, pooling, backend)


def test_a_planted_prefix_hit_that_skips_rows_of_a_mean_is_seen(decoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sequence, "wanted_from", property(lambda sequence: 0 if sequence.holding else len(sequence.known) - 1))
    with pytest.raises(AssertionError):
        check_decoder(decoder, "mean", "cpu")


def test_answers_and_vectors_in_one_batch(decoder: Path) -> None:
    """Neither changes a bit of the other."""
    llm = LLM(decoder, prefill_chunk=64)
    texts = uneven(llm, 200)
    params = SamplingParams(max_tokens=20, temperature=1.0, seed=3, logprobs=2, ignore_eos=True)
    answers = [llm.generate([text], params)[0].choices[0] for text in texts[:4]]
    states = vectors(llm, texts, "mean")
    together = LLM(decoder, prefill_chunk=64).engine
    for number, text in enumerate(texts):
        together.submit(Request(id=f"e{number}", prompt=text, params=SamplingParams(max_tokens=0), embed="mean"))
        if number < 4:
            together.submit(Request(id=f"g{number}", prompt=text, params=params))
    found: dict[str, list] = {}
    mixed = 0
    original = Runner.forward

    def forward(runner: Runner, plan):
        nonlocal mixed
        mixed += len({span.request.embed is None for span in plan.spans}) == 2
        return original(runner, plan)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Runner, "forward", forward)
        while together.busy:
            for output in together.step():
                found.setdefault(output.id, []).append(output)
            together.check()
    assert mixed > 5
    for number, state in enumerate(states):
        vector = np.frombuffer(found[f"e{number}"][-1].vector, "<f4")
        assert Embedding("mean").finish(vector).tobytes() == state
    for number, answer in enumerate(answers):
        outputs = found[f"g{number}"]
        assert [token for output in outputs for token in output.tokens] == answer.tokens
        assert [score for output in outputs for score in output.logprobs] == answer.logprobs


def test_a_preempted_mean_has_the_same_bits(decoder: Path) -> None:
    """An answer that came before grows, and takes the page that the text needs."""
    alone = LLM(decoder)
    text = uneven(alone, 450)[5]
    assert len(text) == 450
    (expected,) = vectors(alone, [text], "mean")
    engine = LLM(decoder, memory=memory_for(alone, tokens=640, tails=4), max_running=2, prefill_chunk=1, cached_tails=0).engine
    params = SamplingParams(max_tokens=300, ignore_eos=True, temperature=0)
    engine.submit(Request(id="answer", prompt=text[:100], params=params))
    engine.submit(Request(id="text", prompt=text, params=SamplingParams(max_tokens=0), arrival=1.0, embed="mean"))
    found = b""
    while engine.busy:
        found += b"".join(output.vector for output in engine.step() if output.id == "text")
    assert engine.scheduler.preemptions > 0
    assert Embedding("mean").finish(np.frombuffer(found, "<f4")).tobytes() == expected


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A model, an adapter of it, and the model with the adapter in its weights."""
    root = tmp_path_factory.mktemp("adapted")
    model = write_tiny_model(root / "model", "llama")
    adapter = write_adapter(root / "adapter", open_model(model).config, 3)
    return model, adapter, merge(model, adapter, root / "merged")


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_an_adapters_vectors_are_the_merged_models(adapted: tuple[Path, Path, Path], pooling: str) -> None:
    model, adapter, merged = adapted
    how, llm = Embedding(pooling), LLM(model, codec="raw32", lora={"mine": adapter})
    expected = LLM(merged, codec="raw32").embed(TEXTS, how)
    assert np.abs(llm.embed(TEXTS, how, adapter="mine") - expected).max() < NEAR
    assert np.abs(llm.embed(TEXTS, how) - expected).max() > 0.1, "the adapter changes nothing: this proves nothing"


def test_a_model_that_does_not_say_how_needs_to_be_told(decoder: Path, folders) -> None:
    with pytest.raises(InvalidRequest, match="does not say how"):
        LLM(decoder).embed(["x"])
    with pytest.raises(InvalidRequest, match="does not generate"):
        LLM(folders("bert")).generate(["x"])


# Through the server


def test_an_encoder_is_served(folders) -> None:
    with model_server(folders("xlm-roberta"), "--health-interval", "0.5") as server:
        llm = LLM(folders("xlm-roberta"))
        answer = server.openai.embeddings.create(model=server.model, input=TEXTS)
        assert np.array_equal(np.array([item.embedding for item in answer.data], np.float32), llm.embed(TEXTS))
        assert answer.usage.prompt_tokens == sum(len(llm.tokenizer.encode_text(text)) for text in TEXTS)
        tokens = server.post("/tokenize", {"prompt": TEXTS[0]}).json()
        assert tokens["tokens"] == llm.tokenizer.encode_text(TEXTS[0])
        assert tokens["max_model_len"] == CONTEXT
        refused(server.chat(), 400, "model")
        assert server.http.get("/healthz?fresh=1").json()["status"] == "ok"
        assert server.metric("pitstop_prompt_tokens_computed_total") == answer.usage.prompt_tokens


def test_a_server_embeds_by_the_adapter_that_is_named(adapted: tuple[Path, Path, Path]) -> None:
    """To the bit, beside the model's own vectors; by the name of an adapter that is not there by none."""
    model, adapter, _ = adapted
    llm = LLM(model, lora={"mine": adapter})
    with model_server(model, "--pooling", "last", "--lora", f"mine={adapter}") as server:
        names = ["mine", server.model] * 3
        with ThreadPoolExecutor(len(names)) as threads:
            answers = threads.map(lambda name: server.openai.embeddings.create(model=name, input=TEXTS), names)
        for name, answer in zip(names, answers, strict=True):
            expected = llm.embed(TEXTS, Embedding("last"), adapter=None if name == server.model else name)
            assert answer.model == name
            assert np.array_equal(np.array([item.embedding for item in answer.data], np.float32), expected), name
        refused(server.post("/v1/embeddings", {"model": "yours", "input": "x"}), 404, "model")


@pytest.mark.slow  # of a toy's answers and vectors in one batch, and of a tiny model's through a server, the quick tests tell
@pytest.mark.model
@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_the_default_model_embeds_beside_its_answers(model_path: Path, pooling: str) -> None:
    with model_server(model_path, "--pooling", pooling, "--context", "1024") as server:
        alone = server.chat("Count to ten.", max_tokens=30).json()["choices"][0]
        texts = ["What is the capital of France?", "Paris is the capital of France.", "I like green apples.", "long " * 300]
        first = embeddings(server, texts)
        with ThreadPoolExecutor(6) as threads:
            chats = [threads.submit(server.chat, "Count to ten.", max_tokens=30) for _ in range(3)]
            again = [threads.submit(embeddings, server, texts) for _ in range(3)]
            assert all(answer.result().json()["choices"][0] == alone for answer in chats)
            assert all(np.array_equal(answer.result(), first) for answer in again)
        assert np.allclose(np.linalg.norm(first, axis=1), 1, atol=1e-6)
        assert first.shape == (4, 576)
        if pooling == "mean":
            assert first[0] @ first[1] > first[0] @ first[2]


def embeddings(server: Server, texts: list[str]) -> np.ndarray:
    answer = server.openai.embeddings.create(model=server.model, input=texts)
    return np.array([item.embedding for item in answer.data], np.float32)


@pytest.mark.slow
@pytest.mark.skipif("PITSTOP_EMBEDDING_MODEL" not in os.environ, reason="names the folder of a real sentence-transformers encoder")
def test_a_real_encoder() -> None:
    """docs/embeddings.md says where one is to be had."""
    from transformers import AutoTokenizer

    folder = Path(os.environ["PITSTOP_EMBEDDING_MODEL"])
    found = difference(folder)
    print(f"max difference {found:.1e}")
    assert found < NEAR
    llm, theirs = LLM(folder), AutoTokenizer.from_pretrained(folder)
    for text in (*TEXTS[:4], *TEXTS[6:], "The quick brown fox. " * 10):
        assert llm.tokenizer.encode_text(text) == theirs(text, truncation=False)["input_ids"]
    near = llm.embed(["A man is eating food.", "Someone eats a meal.", "The stock market fell."])
    assert near[0] @ near[1] > 0.5 > near[0] @ near[2]
