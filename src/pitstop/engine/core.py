"""The engine in one process: weights, cache, scheduler and runner put together."""

from __future__ import annotations

import time
from functools import partial

import psutil
import torch

from pitstop import codecs
from pitstop.config import Adapter, EngineConfig, resolve
from pitstop.engine import guard, pace
from pitstop.engine.adapters import Adapters
from pitstop.engine.encoder import EncoderEngine
from pitstop.engine.guided import HOLD, Guided
from pitstop.engine.loop import StepLoop
from pitstop.engine.memory import gpu_memory, place
from pitstop.engine.numerics import numerics
from pitstop.engine.protocol import Stats
from pitstop.engine.runner import Runner, Running, decode_steps
from pitstop.engine.scheduler import Scheduler
from pitstop.engine.speculation import Speculation
from pitstop.errors import ConfigError, InvalidRequest, Unsupported
from pitstop.kv.cache import KVCache
from pitstop.kv.capacity import capacity, stream_pages
from pitstop.kv.store import KVStore
from pitstop.kv.view import StepView
from pitstop.models.encoder_config import EncoderConfig
from pitstop.models.weights.fetch import identity
from pitstop.models.weights.source import ModelSource
from pitstop.ops import dispatch
from pitstop.text.tokenizer import end_tokens, token_table
from pitstop.types import Output, Request, SamplingParams, StepPlan, StepResult

CAPACITY_LENGTH = 8192
"""Tokens a stream, at which the operator is told how much fits, or the context where that is shorter."""

WARM_UP_TOKENS = 32

INT8_LOSS = (
    "WARNING: int8 activations change the model: on SmolLM2-135M, mean KL divergence 0.004 and 4 % of top tokens against fp32 "
    "(exact: 0.0000001 and none); bench/quality.py measures it"
)


class Engine(StepLoop):
    """`submit` and `cancel` between steps, `step` while `busy`. Not thread-safe: one thread owns it."""

    def __init__(self, config: EngineConfig, source: ModelSource) -> None:
        """Load. Raises ConfigError, WeightsError or Unsupported, each one line."""
        if isinstance(source.config, EncoderConfig):
            raise Unsupported(f"{source.path}: {source.config.architecture} is an encoder, which embeds and does not generate")
        shape = source.config.kv_shape
        codec = codecs.get(config.kv.codec)
        cuda = torch.cuda.is_available()
        free = gpu_memory() if cuda and config.device != "cpu" else psutil.virtual_memory().available
        config = resolve(config, model_context=source.config.context, cuda=cuda, free_memory=free)
        if reason := codec.supports(shape, config.device):
            raise ConfigError(f"--kv {codec.name}: {reason}")
        dispatch.use(config.backend)
        dispatch.set_threads(config.threads)
        model, self.config, pages, tails, padded, self._room_notes = place(config, source, codec, free)
        context = self.config.kv.context
        self._loss = guard.check(self.config, source, codec, shape, model)
        store = KVStore(codec, shape, pages, tails, config.device, padded)
        rows = config.max_running + max(config.prefill_chunk, config.max_running * config.speculate)
        windows = {source.config.window(layer) for layer in range(shape.layers)}
        launches = codec.launches(shape, source.config.heads, windows, config.device)
        view = StepView(store, rows, config.max_running * (stream_pages(context, codec.lead_pages) + 1), config.device, launches)
        decode = decode_steps(model, view, config.max_running, config.device)
        vocabulary = source.vocabulary()
        ends = end_tokens(vocabulary)
        self.vocab_size = source.config.vocab_size
        self.context = context
        self.capacity = capacity(self.config.kv.memory, tails + padded, codec, shape, min(context, CAPACITY_LENGTH))
        self.weights, self.shared = identity(source.path), model.shared
        self.numerics = numerics(self.config, source.config, codec, self.weights)
        self._source_notes = source.notes()
        self._rope_note = source.config.rope.note(context)
        self.adapters = Adapters(source.config, config.device)
        self.adapter_states = self.adapters.load(config.adapters)
        """What became of those of its config."""
        self._guided = Guided(partial(token_table, vocabulary), self.vocab_size, config.max_running)
        self._runner = Runner(model, store, view, ends, self._guided, self.adapters.ready, decode)
        self._cache = KVCache(pages, tails, lead_pages=codec.lead_pages, prefix=config.kv.prefix_cache, cached_tails=config.kv.cached_tails)
        scheduler = Scheduler(
            self._cache,
            context=context,
            vocab_size=self.vocab_size,
            end_tokens=ends,
            prefill_chunk=config.prefill_chunk,
            max_running=config.max_running,
            ageing=config.ageing,
        )
        scheduler.held = self._guided.held
        if config.speculate:
            scheduler.speculation = Speculation(config.speculate)
        super().__init__(scheduler, pace.attended_cost(source.config))
        self._counts = dict.fromkeys(("steps", "prompt_tokens", "generated_tokens", "guessed_tokens", "accepted_tokens"), 0)

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

    def lend(self, size: int) -> int:
        page = self._runner.store.touched_bytes(1, 0)
        if not page:  # the pool is an accelerator's
            return 0
        pages = self._cache.pages
        slots = self._cache.lend(max(0, min(-(-size // page), pages.total + pages.withdrawn - self._kept_pages)))
        self._runner.store.release(slots)
        return page * len(slots)

    @property
    def _kept_pages(self) -> int:
        """That are never lent: a stream may need them."""
        return stream_pages(self.context, self._runner.store.codec.lead_pages)

    def warm_up(self) -> float:
        """Answer prompts that nobody asked, after those that kernels are compiled and graphs recorded with. Returns the pace: seconds a
        unit of work, of the slowest step of the last."""
        sizes = self._runner.sizes
        if sizes:
            self._answer(1, self.config.prefill_chunk)
        for streams in sizes:
            self._answer(streams, 1, temperature=1.0)  # for the kernel that draws
        slowest = self._answer(1, WARM_UP_TOKENS)
        self.scheduler.take_changes()
        self._counts["steps"] = 0
        return slowest

    def _answer(self, streams: int, length: int, temperature: float = 0.0) -> float:
        """Two tokens to each of so many prompts of `length` tokens, as far as the context allows. Returns the pace of the slowest step."""
        length = max(1, min(length, self.context - 2))
        prompt = [token % self.vocab_size for token in range(length)]
        params = SamplingParams(temperature=temperature, max_tokens=min(2, self.context - length), ignore_eos=True)
        for stream in range(streams):
            self.submit(Request(id=f"warm-up {stream}", prompt=prompt, params=params, probe=True))
        slowest = 0.0
        while self.busy:
            start = time.monotonic()
            self.step()
            slowest = max(slowest, (time.monotonic() - start) / self.work)
        return slowest

    def stats(self) -> Stats:
        """The counters as of now."""
        pages, tails, store = self._cache.pages, self._cache.tails, self._runner.store
        spare = max(0, min(pages.free + pages.cached, pages.total - self._kept_pages))
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
            kv_touched=store.touched_bytes(pages.touched, tails.touched),
            kv_spare=store.touched_bytes(spare, 0),
            **self._counts,
        )

    def check(self) -> None:
        """Audit the cache; AssertionError when a slot is lost. Called when idle, and by tests after every step."""
        self._cache.check()

    def notes(self) -> list[str]:
        """Lines for the operator: what runs here, and how much fits."""
        config, store = self.config, self._runner.store
        size = sum(buffer.numel() * buffer.itemsize for buffer in (store.pages, store.tails))
        kernels = "triton" if config.device == "cuda" and "triton" in dispatch.active() else dispatch.describe()
        lines = [
            f"{config.device}, {config.threads} threads, kernels: {kernels}",
            f"KV cache: {store.codec.name}, {size / 2**20:.0f} MiB, {self.capacity}",
        ]
        if config.speculate:
            lines.append(f"Guessing ahead: up to {config.speculate} tokens a step and stream, as long as it pays")
        lines += self._room_notes + self._source_notes + self._loss + self.adapters.notes()
        if self._rope_note:
            lines.append(self._rope_note)
        if config.activations == "int8":
            lines.append(INT8_LOSS)
        if reason := dispatch.native_missing():
            lines.append(f"WARNING: native kernels are missing ({reason}); the plain torch reference runs instead, MUCH slower")
        return lines

    def _launch(self, plan: StepPlan, before: Running | None = None) -> Running:
        running = self._runner.launch(plan, before)
        self._count(plan)  # while a GPU computes
        return running

    def _follow(self, plan: StepPlan, running: Running) -> StepPlan | None:
        return self.scheduler.follow(plan) if running.results.chosen is not None else None

    def _finish(self, plan: StepPlan, running: Running) -> StepResult:
        result = self._runner.finish(running)
        self._count_tokens(plan, result)
        return result

    def _hold(self) -> None:
        self._guided.wait(HOLD)

    def _count(self, plan: StepPlan) -> None:
        counts = self._counts
        counts["steps"] += 1
        for span in plan.spans:
            if not span.request.probe:
                counts["prompt_tokens"] += max(min(span.start + span.count, len(span.request.prompt)) - span.start, 0)
                counts["guessed_tokens"] += len(span.guess)

    def _count_tokens(self, plan: StepPlan, result: StepResult) -> None:
        counts, speculation = self._counts, self.scheduler.speculation
        if speculation is not None and plan.decodes and self._runner.seconds is not None:
            speculation.took(plan.rows, self._runner.seconds)
        for span in plan.spans:
            if span.samples and not span.request.probe:
                tokens = len(result[span.request.id].tokens)
                counts["generated_tokens"] += tokens
                counts["accepted_tokens"] += max(tokens - 1, 0)


def open_engine(config: EngineConfig, source: ModelSource) -> Engine | EncoderEngine:
    """The engine for the model that the source holds. Raises ConfigError, WeightsError or Unsupported."""
    return (EncoderEngine if isinstance(source.config, EncoderConfig) else Engine)(config, source)
