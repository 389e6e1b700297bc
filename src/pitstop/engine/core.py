"""The engine in one process: weights, cache, scheduler and runner put together, and the body of the step loop."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

import psutil
import torch

from pitstop import codecs
from pitstop.config import Adapter, EngineConfig, resolve
from pitstop.engine import guard, pace
from pitstop.engine.adapters import Adapters
from pitstop.engine.encoder import EncoderEngine
from pitstop.engine.guided import HOLD, Guided
from pitstop.engine.numerics import numerics
from pitstop.engine.protocol import Stats
from pitstop.engine.recorder import RecordedSpan, Recorder
from pitstop.engine.runner import Runner
from pitstop.engine.scheduler import Scheduler
from pitstop.engine.speculation import Speculation
from pitstop.errors import ConfigError, InvalidRequest, Unsupported
from pitstop.kv.cache import KVCache
from pitstop.kv.capacity import capacity, longest_stream, page_bytes, pages_within, reserved_tails, stream_pages, tail_bytes
from pitstop.kv.store import KVStore
from pitstop.kv.view import StepView
from pitstop.models import load_model
from pitstop.models.encoder_config import EncoderConfig
from pitstop.models.weights.fetch import identity
from pitstop.models.weights.source import ModelSource
from pitstop.ops import dispatch
from pitstop.text.tokenizer import end_tokens, token_table
from pitstop.types import SEGMENT, Codec, KVShape, Output, Request, SamplingParams, StepPlan, StepResult

CAPACITY_LENGTH = 8192
"""Tokens a stream, at which the operator is told how much fits, or the context where that is shorter."""

WARM_UP_TOKENS = 32

INT8_LOSS = (
    "WARNING: int8 activations change the model: on SmolLM2-135M, mean KL divergence 0.004 and 4 % of top tokens against fp32 "
    "(exact: 0.0000001 and none); bench/quality.py measures it"
)


class Engine:
    """`submit` and `cancel` between steps, `step` while `busy`. Not thread-safe: one thread owns it."""

    def __init__(self, config: EngineConfig, source: ModelSource) -> None:
        """Load. Raises ConfigError, WeightsError or Unsupported, each one line."""
        if isinstance(source.config, EncoderConfig):
            raise Unsupported(f"{source.path}: {source.config.architecture} is an encoder, which embeds and does not generate")
        shape = source.config.kv_shape
        codec = codecs.get(config.kv.codec)
        cuda = torch.cuda.is_available()
        free = torch.cuda.mem_get_info()[0] if cuda and config.device != "cpu" else psutil.virtual_memory().available
        config = resolve(config, model_context=source.config.context, cuda=cuda, free_memory=free)
        if reason := codec.supports(shape, config.device):
            raise ConfigError(f"--kv {codec.name}: {reason}")
        self.config, pages, tails = _sized(config, codec, shape)
        dispatch.use(config.backend)
        dispatch.set_threads(config.threads)
        context = self.config.kv.context
        model = load_model(source, config.device, context, config.activations)
        self._loss = guard.check(self.config, source, codec, shape, model)
        store = KVStore(codec, shape, pages, tails, config.device)
        rows = config.max_running + max(config.prefill_chunk, config.max_running * config.speculate)
        view = StepView(store, rows, config.max_running * (stream_pages(context, codec.lead_pages) + 1), config.device)
        vocabulary = source.vocabulary()
        ends = end_tokens(vocabulary)
        self.vocab_size = source.config.vocab_size
        self.context = context
        self.capacity = capacity(config.kv.memory, tails, codec, shape, min(context, CAPACITY_LENGTH))
        self.weights = identity(source.path)
        self.numerics = numerics(self.config, source.config, codec, self.weights)
        self._source_notes = source.notes()
        self._rope_note = source.config.rope.note(context)
        self.adapters = Adapters(source.config, config.device)
        self.adapter_states = self.adapters.load(config.adapters)
        """What became of those of its config."""
        self._guided = Guided(partial(token_table, vocabulary), self.vocab_size, config.max_running)
        self._runner = Runner(model, store, view, config.device, ends, self._guided, self.adapters.ready)
        self._cache = KVCache(pages, tails, lead_pages=codec.lead_pages, prefix=config.kv.prefix_cache, cached_tails=config.kv.cached_tails)
        self.scheduler = Scheduler(
            self._cache,
            context=context,
            vocab_size=self.vocab_size,
            end_tokens=ends,
            prefill_chunk=config.prefill_chunk,
            max_running=config.max_running,
            ageing=config.ageing,
        )
        self.scheduler.held = self._guided.held
        if config.speculate:
            self.scheduler.speculation = Speculation(config.speculate)
        self._counts = dict.fromkeys(("steps", "prompt_tokens", "generated_tokens", "guessed_tokens", "accepted_tokens"), 0)
        self.attended_cost = pace.attended_cost(source.config)
        self.recorder: Recorder | None = None
        self.work = 0.0
        """Of the latest step, in units of engine.pace; 0 when it had nothing to run."""

    @property
    def busy(self) -> bool:
        return self.scheduler.busy

    def submit(self, request: Request) -> None:
        """Queue a request. Raises InvalidRequest for one that can never run."""
        if request.adapter and request.adapter not in self.adapters.ready:
            raise InvalidRequest(f"the adapter {request.adapter} is not loaded", "model")
        self.scheduler.submit(request)
        self._guided.begin(request)

    def check_grammar(self, grammar: str, field: str) -> None:
        """Raises InvalidRequest, naming the field, for one that cannot be used."""
        self._guided.check(grammar, field)

    def unload(self, adapter: Adapter) -> list[Output]:
        """Forget an adapter, with its weights and prefixes. Its requests should have ended; one that has not ends with an error."""
        outputs = self.scheduler.fail_all(f"the adapter {adapter.name} was unloaded", adapter.id)
        if (lora := self.adapters.ready.get(adapter.id)) is not None:
            self._runner.forget(lora)
        self.adapters.drop(adapter.id)
        self._cache.forget(adapter.id)
        return outputs

    def cancel(self, request_id: str) -> Output | None:
        """End a request now; None when it is unknown or has ended."""
        return self.scheduler.cancel(request_id)

    def step(self) -> list[Output]:
        """Expire what is late, then compute one step. While all that is here waits for its grammar, wait a moment for that."""
        outputs = self.scheduler.expire(time.monotonic())
        stalled = self.scheduler.stalled  # asked before the plan: it may end at any time
        plan = self.scheduler.plan()
        self.work = 0.0
        if plan.spans:
            self.work = pace.total(((span.start, span.count) for span in plan.spans), self.attended_cost)
            if self.recorder is not None:
                self.recorder.begin(RecordedSpan(span.request.id, span.start, span.count, len(span.known)) for span in plan.spans)
            result = self._runner.run(plan)
            if self.recorder is not None:
                self.recorder.done()
            self._count(plan, result)
            outputs += self.scheduler.settle(plan, result)
        elif stalled:
            self._guided.wait(HOLD)
        elif self.busy:
            raise RuntimeError("requests wait but nothing can be planned: the cache is too small for its own context")
        return outputs

    def ahead(self) -> float:
        """The work of the next step at most, unless something new is submitted."""
        return pace.total(self.scheduler.outlook(), self.attended_cost) if self.busy else 0.0

    def warm_up(self) -> float:
        """Answer a prompt that nobody asked. Returns the pace: seconds a unit of work, of the slowest step."""
        length = max(1, min(WARM_UP_TOKENS, self.context - 2))
        prompt = [token % self.vocab_size for token in range(length)]
        params = SamplingParams(temperature=0.0, max_tokens=min(2, self.context - length), ignore_eos=True)
        self.submit(Request(id="warm-up", prompt=prompt, params=params, probe=True))
        slowest = 0.0
        while self.busy:
            start = time.monotonic()
            self.step()
            slowest = max(slowest, (time.monotonic() - start) / self.work)
        self.scheduler.take_changes()
        self._counts["steps"] = 0
        return slowest

    def stats(self) -> Stats:
        """The counters as of now."""
        pages, tails = self._cache.pages, self._cache.tails
        return Stats(
            running=self.scheduler.running,
            waiting=self.scheduler.waiting,
            pages_total=pages.total,
            pages_free=pages.free,
            pages_cached=pages.cached,
            tails_total=tails.total,
            tails_free=tails.free,
            tails_cached=tails.cached,
            preemptions=self.scheduler.preemptions,
            cached_tokens=self.scheduler.cached_tokens,
            kv_touched=self._runner.store.touched_bytes(pages.touched, tails.touched),
            **self._counts,
        )

    def check(self) -> None:
        """Audit the cache; AssertionError when a slot is lost. Called when idle, and by tests after every step."""
        self._cache.check()

    def notes(self) -> list[str]:
        """Lines for the operator: what runs here, and how much fits."""
        config, store = self.config, self._runner.store
        size = sum(buffer.numel() * buffer.itemsize for buffer in (store.pages, store.tails))
        lines = [
            f"{config.device}, {config.threads} threads, kernels: {dispatch.describe()}",
            f"KV cache: {store.codec.name}, {size / 2**20:.0f} MiB, {self.capacity}",
        ]
        if config.speculate:
            lines.append(f"Guessing ahead: up to {config.speculate} tokens a step and stream, as long as it pays")
        lines += self._source_notes + self._loss + self.adapters.notes()
        if self._rope_note:
            lines.append(self._rope_note)
        if config.activations == "int8":
            lines.append(INT8_LOSS)
        if reason := dispatch.native_missing():
            lines.append(f"WARNING: native kernels are missing ({reason}); the plain torch reference runs instead, MUCH slower")
        return lines

    def _count(self, plan: StepPlan, result: StepResult) -> None:
        counts, speculation = self._counts, self.scheduler.speculation
        if speculation is not None and plan.decodes and self._runner.seconds is not None:
            speculation.took(plan.rows, self._runner.seconds)
        counts["steps"] += 1
        for span in plan.spans:
            if not span.request.probe:
                counts["prompt_tokens"] += max(min(span.start + span.count, len(span.request.prompt)) - span.start, 0)
                tokens = len(result[span.request.id].tokens) if span.samples else 0
                counts["generated_tokens"] += tokens
                counts["guessed_tokens"] += len(span.guess)
                counts["accepted_tokens"] += max(tokens - 1, 0)


def open_engine(config: EngineConfig, source: ModelSource) -> Engine | EncoderEngine:
    """The engine for the model that the source holds. Raises ConfigError, WeightsError or Unsupported."""
    return (EncoderEngine if isinstance(source.config, EncoderConfig) else Engine)(config, source)


def _sized(config: EngineConfig, codec: Codec, shape: KVShape) -> tuple[EngineConfig, int, int]:
    """(config with the context that fits, pages, tail slots). Raises ConfigError when not even one segment fits."""
    tails = reserved_tails(config.max_running, config.prefill_chunk, config.kv.cached_tails * config.kv.prefix_cache)
    pages = pages_within(config.kv.memory, tails, codec, shape)
    if pages < (first := stream_pages(SEGMENT, codec.lead_pages)):
        least = tails * tail_bytes(codec, shape) + first * page_bytes(codec, shape)
        raise ConfigError(
            f"--kv-memory {config.kv.memory / 2**20:.0f}MiB is too small: {tails} open segments and a sealed one need "
            f"{least / 2**20:.0f}MiB; raise it, or lower --max-running or --prefill-chunk"
        )
    context = min(config.kv.context, longest_stream(pages, codec.lead_pages))
    return replace(config, kv=replace(config.kv, context=context)), pages, tails
