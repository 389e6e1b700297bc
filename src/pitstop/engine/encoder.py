"""The engine of an encoder: the scheduler and step loop of the other one, without a cache, on whole texts."""

from __future__ import annotations

import time

import psutil
import torch

from pitstop.config import Adapter, EngineConfig, resolve
from pitstop.engine import pace
from pitstop.engine.adapters import Adapters
from pitstop.engine.loop import StepLoop
from pitstop.engine.numerics import encoder_numerics
from pitstop.engine.protocol import Stats
from pitstop.engine.scheduler import Scheduler
from pitstop.errors import ConfigError, InvalidRequest
from pitstop.kv.cache import Holding
from pitstop.kv.capacity import Capacity
from pitstop.kv.slots import Slots
from pitstop.models import load_encoder
from pitstop.models.weights.fetch import identity
from pitstop.models.weights.source import ModelSource
from pitstop.ops import dispatch
from pitstop.types import Output, Request, Sampled, SamplingParams, StepPlan, StepResult

WARM_UP_TOKENS = 32


class NoCache:
    """Stands where the KV cache does (kv.cache.KVCache), for a model that keeps nothing between steps."""

    def __init__(self) -> None:
        self.pages = self.tails = Slots(0)
        self.copies: list[tuple[int, int]] = []

    def open(self, tokens: list[int], prompt: int, *, limit: int | None = None, listed: bool = True, adapter: str = "") -> Holding:
        return Holding(node=None)

    def abandon(self, holding: Holding) -> None: ...

    def reserve(self, holding: Holding, count: int) -> list:
        return []

    def commit(self, holding: Holding, tokens: list[int], pieces: int | None = None) -> None:
        holding.length = len(tokens)

    def close(self, holding: Holding, tokens: list[int]) -> None: ...

    def fits(self, holding: Holding, tokens: int) -> bool:
        return True

    def check(self) -> None: ...


class EncoderEngine(StepLoop):
    """As engine.core.Engine, for requests that embed and no others. Not thread-safe: one thread owns it."""

    def __init__(self, config: EngineConfig, source: ModelSource) -> None:
        """Load. Raises ConfigError, WeightsError or Unsupported, each one line."""
        if config.kv.codec != "raw16":
            raise ConfigError(f"--kv {config.kv.codec}: {source.config.architecture} is an encoder, which has no KV cache; leave it out")
        if config.speculate:
            raise ConfigError(f"--speculate {config.speculate}: {source.config.architecture} is an encoder, which generates nothing")
        cuda = torch.cuda.is_available()
        config = resolve(config, model_context=source.config.context, cuda=cuda, free_memory=psutil.virtual_memory().available)
        self.config = config
        dispatch.use(config.backend)
        dispatch.set_threads(config.threads)
        self._model = load_encoder(source, config.device, config.activations, config.share_weights)
        self.vocab_size = source.config.vocab_size
        self.context = config.kv.context
        self.capacity = Capacity(0, self.context, 1.0)
        self.weights, self.shared = identity(source.path), self._model.shared
        self.numerics = encoder_numerics(config, self.weights)
        self.adapters = Adapters(source.config, config.device)
        self.adapter_states = self.adapters.load(config.adapters)
        """What became of those of its config: none is for an encoder."""
        self._notes = source.notes()
        scheduler = Scheduler(
            NoCache(),
            context=self.context,
            vocab_size=self.vocab_size,
            prefill_chunk=config.prefill_chunk,
            max_running=config.max_running,
            ageing=config.ageing,
            whole=True,
        )
        super().__init__(scheduler, pace.encoder_attended_cost(source.config))
        self._steps = self._tokens = 0

    def submit(self, request: Request) -> None:
        """Queue a request. Raises InvalidRequest for one that can never run, as one that generates."""
        if request.adapter:
            raise InvalidRequest(f"the adapter {request.adapter} is not loaded", "model")
        self.scheduler.submit(request)

    def unload(self, adapter: Adapter) -> list[Output]:
        """Forget an adapter that could not be loaded."""
        self.adapters.drop(adapter.id)
        return []

    def check_grammar(self, grammar: str, field: str) -> None:
        """Raises InvalidRequest: there are no answers here that one could bind."""
        raise InvalidRequest("this model embeds and does not generate", field)

    def warm_up(self) -> float:
        """Embed a text that nobody sent. Returns the pace: seconds a unit of work."""
        prompt = [token % self.vocab_size for token in range(min(WARM_UP_TOKENS, self.context))]
        self.submit(Request(id="warm-up", prompt=prompt, params=SamplingParams(max_tokens=0), embed="mean", probe=True))
        start = time.monotonic()
        self.step()
        self.scheduler.take_changes()
        self._steps = 0
        return (time.monotonic() - start) / self.work

    def stats(self) -> Stats:
        """The counters as of now."""
        scheduler = self.scheduler
        return Stats(running=scheduler.running, waiting=scheduler.waiting, steps=self._steps, prompt_tokens=self._tokens)

    def check(self) -> None:
        """There is nothing that could be lost."""

    def notes(self) -> list[str]:
        """Lines for the operator: what runs here."""
        lines = [f"{self.config.device}, {self.config.threads} threads, kernels: {dispatch.describe()}", *self._notes]
        lines.append("an encoder: it embeds texts, and does not generate")
        if reason := dispatch.native_missing():
            lines.append(f"WARNING: native kernels are missing ({reason}); the plain torch reference runs instead, MUCH slower")
        return lines

    def _launch(self, plan: StepPlan, before: StepResult | None = None) -> StepResult:
        self._steps += 1
        self._tokens += sum(span.count for span in plan.spans if not span.request.probe)
        hidden = self._model.forward([span.known for span in plan.spans])
        result: StepResult = {}
        end = 0
        for span in plan.spans:
            end += span.count
            result[span.request.id] = Sampled([], hidden=hidden[end - span.wanted : end])
        return result

    def _finish(self, plan: StepPlan, result: StepResult) -> StepResult:
        return result
