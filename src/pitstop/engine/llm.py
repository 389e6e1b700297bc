"""The batch API: `LLM(model).generate(prompts)`, in this process, on the same engine that serves."""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from pitstop.config import Adapter, EngineConfig, KVConfig
from pitstop.engine.core import open_engine
from pitstop.engine.padding import unpad
from pitstop.errors import InvalidRequest, ModelNotFound, PitstopError, Unsupported
from pitstop.models.embedding import Embedding
from pitstop.models.lora.file import read_adapter
from pitstop.models.weights.fetch import pull
from pitstop.models.weights.source import open_model
from pitstop.text.stream import TextStream
from pitstop.text.template import ChatTemplate
from pitstop.text.tokenizer import Tokenizer
from pitstop.types import FinishReason, Logprob, Output, Request, SamplingParams

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Completion:
    """One answer. `tokens` are those that count: up to and including an end token or the one that completed a stop string."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[Logprob] = field(default_factory=list)  # one per token, when asked for
    finish_reason: FinishReason | None = None
    message: str = ""  # why, when that is "error"


@dataclass(slots=True)
class RequestOutput:
    """A prompt's answers, one per choice."""

    prompt: list[int]
    choices: list[Completion]
    cached_tokens: int = 0
    prompt_logprobs: list[Logprob] | None = None  # of prompt tokens 1, 2, …, when asked for

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def tokens(self) -> list[int]:
        return self.choices[0].tokens

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.choices[0].finish_reason


class LLM:
    """A model in this process.

    model: a name that `pitstop models list` shows (fetched when missing), or a path to a GGUF file or a Hugging Face folder. Options are
    EngineConfig's and, after them, KVConfig's (`codec`, `memory`, `context`, `prefix_cache`, `cached_tails`, `guard`). What the engine
    warns of is logged. lora: folders of LoRA adapters by the names that `generate` knows them by.
    Raises ConfigError, WeightsError, DownloadFailed, InvalidRequest for an adapter.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = "smollm2-135m-instruct",
        *,
        lora: Mapping[str, str | os.PathLike[str]] | None = None,
        **options,
    ) -> None:
        kv_names = set(KVConfig.__dataclass_fields__)
        kv = KVConfig(**{name: value for name, value in options.items() if name in kv_names})
        rest = {name: value for name, value in options.items() if name not in kv_names}
        path = pull(os.fspath(model))
        source = open_model(path)
        vocabulary = source.vocabulary()
        self.tokenizer = Tokenizer(vocabulary)
        self.template = ChatTemplate(vocabulary.chat_template, self.tokenizer) if vocabulary.chat_template else None
        self.engine = open_engine(EngineConfig(model=str(path), kv=kv, **rest), source)
        self.embedding = source.embedding()
        """How the model's files say that it embeds, if they do."""
        for note in self.engine.notes():
            if note.startswith("WARNING"):
                log.warning(note)
        self._ids = itertools.count()
        self._followers: list[tuple[Mapping[str, object], list[Output]]] = []
        self._config = source.config
        self._adapters: dict[str, Adapter] = {}
        for name, folder in (lora or {}).items():
            self.load_adapter(name, folder)

    def load_adapter(self, name: str, path: str | os.PathLike[str]) -> Adapter:
        """Load the LoRA adapter in the folder `path`, in the place of another one of this name. Raises InvalidRequest."""
        adapter = read_adapter(name, path, self._config)
        for state in self.engine.adapters.load([adapter]):
            if state.error:
                raise InvalidRequest(f"path: {state.error}", "path")
        if (before := self._adapters.get(name)) is not None and before.id != adapter.id:
            self.engine.unload(before)
        self._adapters[name] = adapter
        return adapter

    def unload_adapter(self, name: str) -> None:
        """Raises ModelNotFound."""
        adapter = self._adapter(name)
        del self._adapters[name]
        self.engine.unload(adapter)

    def _adapter(self, name: str) -> Adapter:
        if name not in self._adapters:
            raise ModelNotFound(f"no adapter {name!r} is loaded")
        return self._adapters[name]

    def generate(
        self,
        prompts: str | Sequence[str | Sequence[int]] | None = None,
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        input_ids: Sequence[Sequence[int]] | None = None,
        attention_mask: Sequence[Sequence[int]] | None = None,
        n: int = 1,
        progress: bool = False,
        adapter: str | Sequence[str | None] | None = None,
    ) -> list[RequestOutput]:
        """Answers to all prompts, in order, batched continuously.

        prompts: texts (spellings of control tokens are those tokens; /v1/completions takes them for text) or token ids, of any lengths. Or
        `input_ids` with `attention_mask` [batch, length]: padding (mask 0) left, right or both is removed before the engine sees it.
        params: one for all, or one per prompt. A seed of 0 is a seed like any other here; `grammar` is a string of pitstop.guide's.
        n: choices per prompt.
        adapter: the name of a loaded LoRA adapter for all, or one per prompt, None for the model as it is.
        Raises InvalidRequest naming the field, ModelNotFound for an adapter.
        """
        tokens = self._tokens(prompts, input_ids, attention_mask)
        each = [params or SamplingParams()] * len(tokens) if params is None or isinstance(params, SamplingParams) else list(params)
        if len(each) != len(tokens):
            raise InvalidRequest(f"{len(tokens)} prompts but {len(each)} sampling params", "params")
        names = [adapter] * len(tokens) if adapter is None or isinstance(adapter, str) else list(adapter)
        if len(names) != len(tokens):
            raise InvalidRequest(f"{len(tokens)} prompts but {len(names)} adapters", "adapter")
        for param in each:
            if param.grammar:
                self.engine.check_grammar(param.grammar, "params.grammar")
        if n < 1:
            raise InvalidRequest(f"n must be at least 1, got {n}", "n")
        outputs = [RequestOutput(ids, [Completion() for _ in range(n)]) for ids in tokens]
        bar = tqdm(total=len(outputs) * n, disable=not progress, unit="answer")
        loaded = ["" if name is None else self._adapter(name).id for name in names]
        jobs = [_Job(ids, param, choice, id) for ids, param, id in zip(tokens, each, loaded, strict=True) for choice in range(n)]
        for index, event in self._run(jobs, n):
            output, choice = outputs[index // n], outputs[index // n].choices[index % n]
            choice.text += event.text
            choice.tokens += event.tokens
            choice.logprobs += event.logprobs
            output.cached_tokens = max(output.cached_tokens, event.cached_tokens)
            output.prompt_logprobs = event.prompt_logprobs if event.prompt_logprobs is not None else output.prompt_logprobs
            if event.finish:
                choice.finish_reason, choice.message = event.finish, event.message
                bar.update()
        bar.close()
        return outputs

    def embed(
        self, texts: str | Sequence[str | Sequence[int]], embedding: Embedding | None = None, *, adapter: str | None = None
    ) -> np.ndarray:
        """Embeddings of texts or token ids, batched: [texts, width] fp32.

        embedding: how, by default as the model's files say. adapter: the name of a loaded LoRA adapter, None for the model as it is.
        Raises InvalidRequest naming the field, ModelNotFound for an adapter.
        """
        embedding = embedding or self.embedding
        if embedding is None:
            raise InvalidRequest('the model does not say how it embeds: give embedding=Embedding("mean") or "last"', "embedding")
        texts = [texts] if isinstance(texts, str) else texts
        if not texts:
            raise InvalidRequest("there is no text to embed", "texts")
        tokens = [self.tokenizer.encode_text(text) if isinstance(text, str) else [int(token) for token in text] for text in texts]
        number, arrival, engine = next(self._ids), time.monotonic(), self.engine
        params, loaded = SamplingParams(max_tokens=0), "" if adapter is None else self._adapter(adapter).id
        live, vectors = {f"{number}-{index}": index for index in range(len(tokens))}, [b""] * len(tokens)
        with self._following(live) as come:
            for name, index in live.items():
                engine.submit(
                    Request(id=name, prompt=tokens[index], params=params, arrival=arrival, embed=embedding.pooling, adapter=loaded)
                )
            while live:
                for output in come():
                    if output.finish == "error":
                        raise PitstopError(output.message)
                    vectors[live.pop(output.id)] = output.vector
        return np.stack([embedding.finish(np.frombuffer(vector, "<f4")) for vector in vectors])

    def chat(self, messages: list[dict], params: SamplingParams | None = None) -> RequestOutput:
        """The answer to a conversation, by the model's chat template."""
        return self.generate([self._render(messages)], params)[0]

    def stream_chat(self, messages: list[dict], params: SamplingParams | None = None) -> Iterator[str]:
        """The same, piece by piece as the text comes; other calls may come between two. Closing the iterator cancels the request."""
        for _, event in self._run([_Job(self._render(messages), params or SamplingParams())], 1):
            if event.text:
                yield event.text

    def _render(self, messages: list[dict]) -> list[int]:
        if self.template is None:
            raise Unsupported("this model has no chat template: use generate")
        return self.template.render(messages)

    def _tokens(self, prompts, input_ids, attention_mask) -> list[list[int]]:
        """All prompts as token ids."""
        if (prompts is None) == (input_ids is None):
            raise InvalidRequest("give either prompts or input_ids", "prompts")
        if input_ids is not None:
            return unpad(input_ids, attention_mask)
        if isinstance(prompts, str):
            prompts = [prompts]
        return [self.tokenizer.encode_prompt(p, control=True) if isinstance(p, str) else [int(token) for token in p] for p in prompts]

    def _run(self, jobs: list[_Job], n: int) -> Iterator[tuple[int, _Event]]:
        """Submit all jobs and step until they have ended: (index of the job, what came)."""
        number, arrival = next(self._ids), time.monotonic()
        live: dict[str, tuple[int, TextStream]] = {}
        with self._following(live) as come:
            for index, (prompt, params, choice, adapter) in enumerate(jobs):
                name = f"{number}-{index}"
                group = f"{number}-{index // n}" if n > 1 else ""
                request = Request(id=name, prompt=prompt, params=params, choice=choice, group=group, arrival=arrival, adapter=adapter)
                self.engine.submit(request)
                live[name] = index, TextStream(self.tokenizer, params.stop, params.min_tokens)
            while live:
                for output in come():
                    if output.id not in live:
                        continue
                    index, text = live[output.id]
                    event = _event(output, text)
                    if event.finish:
                        del live[output.id]
                        self.engine.cancel(output.id)  # a stop string ends it here first
                    yield index, event

    @contextmanager
    def _following(self, live: Mapping[str, object]) -> Iterator[Callable[[], list[Output]]]:
        """Gives a function that gives what has come for the requests in `live`, by their ids; where nothing has, it takes a step.

        Several callers may follow theirs by turns: whoever takes a step files what it brings for the others. The caller takes out of `live`
        what has ended; what is left there at the end is cancelled.
        """
        inbox: list[Output] = []
        following = (live, inbox)
        self._followers.append(following)

        def come() -> list[Output]:
            if not inbox:
                for output in self.engine.step():
                    for others, box in self._followers:
                        if output.id in others:
                            box.append(output)
            found = inbox.copy()
            inbox.clear()
            return found

        try:
            yield come
        finally:
            self._followers = [other for other in self._followers if other is not following]
            for name in live:
                self.engine.cancel(name)


class _Job(NamedTuple):
    prompt: list[int]
    params: SamplingParams
    choice: int = 0
    adapter: str = ""  # its id


@dataclass(slots=True)
class _Event:
    """What one step brought for one choice, as text."""

    text: str
    tokens: list[int]
    logprobs: list[Logprob]
    finish: FinishReason | None
    cached_tokens: int
    prompt_logprobs: list[Logprob] | None
    message: str


def _event(output: Output, stream: TextStream) -> _Event:
    text, tokens, _, finish, _ = stream.settle(output.tokens, output.finish, output.complete)
    return _Event(
        text, tokens, (output.logprobs or [])[: len(tokens)], finish, output.cached_tokens, output.prompt_logprobs, output.message
    )
