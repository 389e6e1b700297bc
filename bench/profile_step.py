"""Where does a step spend its time? Decode of 1 and 32 streams, and a prefill chunk: kernels by op, Python, sampling, messages.

    python bench/profile_step.py [--model NAME_OR_PATH] [--steps 30] [--context 256] [--streams 1,32] [--activations exact]

A decode step runs as one recorded call (ops/graph.py). It is timed as a whole, and in another engine call by call, by a stand-in for the
native module that notes how long each takes. Figures are medians over steps, in milliseconds. A table per case, and last one JSON line.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from unittest import mock

import texts
from measure import Case
from others import Others

from pitstop import LLM, SamplingParams
from pitstop.config import usable_cores
from pitstop.engine import core, runner
from pitstop.engine.protocol import Commands, Step, ToFront, ToWorker, receive, send
from pitstop.engine.runner import Runner
from pitstop.engine.scheduler import Scheduler
from pitstop.kv.view import StepView
from pitstop.ops import dispatch
from pitstop.ops.graph import Graph
from pitstop.types import Request


class Clock:
    """Seconds by name, summed over one step; `steps` keeps those that ended."""

    def __init__(self) -> None:
        self.now: dict[str, float] = defaultdict(float)
        self.steps: list[dict[str, float]] = []

    def timed(self, name: str, function: Callable) -> Callable:
        def call(*arguments, **options):
            begin = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                self.now[name] += time.perf_counter() - begin

        return call

    def restart(self) -> None:
        self.now.clear()
        self.steps.clear()

    def end_step(self) -> None:
        self.steps.append(dict(self.now))
        self.now.clear()

    def medians(self) -> dict[str, float]:
        """Milliseconds by name."""
        names = {name for step in self.steps for name in step}
        return {name: 1e3 * statistics.median(step.get(name, 0.0) for step in self.steps) for name in names}


class TimedGraph:
    """Stands in for a native graph: each call is a graph of its own, timed as "kernel NAME"."""

    def __init__(self, native: object, clock: Clock) -> None:
        self._native, self._clock = native, clock
        self._calls: list[Callable[[], None]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        def note(*arguments: object) -> None:
            call = self._native.Graph()
            getattr(call, name)(*arguments)
            self._calls.append(self._clock.timed(f"kernel {name}", call.replay))

        return note

    def replay(self) -> None:
        for call in self._calls:
            call()


class TimedNative:
    """Stands in for the native module: the same functions, timed as "kernel NAME"."""

    def __init__(self, native: object, clock: Clock) -> None:
        self._native, self._clock = native, clock

    def __getattr__(self, name: str) -> object:
        value = getattr(self._native, name)
        if isinstance(value, type):
            return partial(TimedGraph, self._native, self._clock)
        timed = self._clock.timed(f"kernel {name}", value)
        setattr(self, name, timed)  # the next look-up costs nothing
        return timed


@contextmanager
def instrumented(clock: Clock) -> Iterator[None]:
    """Time the parts of Engine.step. Kernels run inside "logits", which runs inside "launch"."""
    parts = [
        (Scheduler, "plan", "plan"),
        (Scheduler, "settle", "settle"),
        (Runner, "launch", "launch"),
        (Runner, "finish", "finish"),
        (Runner, "forward", "logits"),
        (StepView, "load", "load"),
        (runner.sampler, "sample", "sample"),
        (core.Engine, "step", "step"),
        (Graph, "replay", "graph"),
    ]
    with ExitStack() as stack:
        for owner, attribute, name in parts:
            original = getattr(owner, attribute)
            stack.enter_context(mock.patch.object(owner, attribute, _method(clock.timed(name, original))))
        yield


def _method(function: Callable) -> Callable:
    """A plain function, which binds to its object when it is found on a class."""
    return lambda *arguments, **options: function(*arguments, **options)


def message_times(requests: list[Request], outputs: list, stats) -> float:
    """Milliseconds for a step's messages, written and read on one socket pair: commands there, and back what the step brought."""
    ours, theirs = socket.socketpair()
    times = []
    with ours, theirs:
        for _ in range(50):
            begin = time.perf_counter()
            send(ours, Commands(1, submit=requests))
            receive(theirs, ToWorker)
            send(theirs, Step(1, outputs, stats))
            receive(ours, ToFront)
            times.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(times)


def profile(llm: LLM, clock: Clock, prompts: list[list[int]], steps: int) -> dict[str, float]:
    """Milliseconds by part for steps in which every prompt decodes one token."""
    engine, begun = llm.engine, set()
    waiting = sum(map(len, prompts)) // engine.config.prefill_chunk
    requests = _submit(llm, prompts, steps + waiting + 8)
    while len(begun) < len(prompts):
        begun |= {output.id for output in engine.step()}
    engine.step()  # a graph is recorded on first use
    clock.restart()
    with instrumented(clock):
        for _ in range(steps):
            outputs = engine.step()
            clock.end_step()
    for request in requests:
        engine.cancel(request.id)
    return clock.medians() | {"messages": message_times([], outputs, engine.stats())}


def profile_prefill(llm: LLM, clock: Clock, prompt: list[int], steps: int) -> dict[str, float]:
    """Milliseconds by part for steps that compute a prompt of one chunk."""
    engine = llm.engine
    clock.restart()
    for repeat in range(steps + 1):
        requests = _submit(llm, [prompt], 1)
        with instrumented(clock):
            outputs = engine.step()
        if repeat:  # after one to warm up
            clock.end_step()
        clock.now.clear()
    return clock.medians() | {"messages": message_times(requests, outputs, engine.stats())}


def _submit(llm: LLM, prompts: list[list[int]], tokens: int) -> list[Request]:
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    requests = [Request(id=str(index), prompt=prompt, params=params) for index, prompt in enumerate(prompts)]
    for request in requests:
        llm.engine.submit(request)
    return requests


def summary(whole: dict[str, float], timed: dict[str, float]) -> dict[str, float]:
    """The parts that add up to a step, from the run as it serves, and each kernel's share, from the timed run (a prefill has no other)."""
    kernels = {name: value for name, value in timed.items() if name.startswith("kernel ")}
    native = sum(kernels.values())
    graph = whole.get("graph", 0.0)
    compute = graph or native
    parts = {
        "kernels": compute,
        "Python of the forward": whole["logits"] - whole["load"] - compute,
        "indices of the step": whole["load"],
        "sampling": whole["sample"],
        "scheduling": whole["plan"] + whole["settle"],
        "rest": whole["step"] - whole["plan"] - whole["settle"] - whole["logits"] - whole["sample"],
    }
    return {"step": whole["step"], **parts, "messages": whole["messages"], "timed step": timed["step"], "timed kernels": native, **kernels}


def show(title: str, figures: dict[str, float]) -> None:
    print(f"\n{title}: {figures['step']:.3f} ms")
    for name, value in figures.items():
        if name == "timed step":
            print(f"  call by call {value:.3f} ms, of which kernels {figures['timed kernels']:.3f}:")
        elif name not in ("step", "timed kernels") and not name.startswith("kernel "):
            aside = "  (beside the step)" if name == "messages" else f"{100 * value / figures['step']:6.1f} %"
            print(f"  {name:24} {value:9.3f} ms {aside}")
    kernels = [(name, value) for name, value in figures.items() if name.startswith("kernel ")]
    for name, value in sorted(kernels, key=lambda item: -item[1]):
        print(f"    {name.removeprefix('kernel '):22} {value:9.3f} ms {100 * value / figures['timed kernels']:6.1f} %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--context", type=int, default=256, help="tokens of each prompt before decoding")
    parser.add_argument("--streams", default="1,32", help="the text has 110,000 tokens for their contexts")
    parser.add_argument("--chunk", type=int, default=512, help="tokens of the prefill chunk")
    parser.add_argument("--activations", default="exact")
    parser.add_argument("--threads", type=int, default=usable_cores())
    options = parser.parse_args()
    common = {"threads": options.threads, "prefix_cache": False, "prefill_chunk": options.chunk, "activations": options.activations}
    served, timed, clock, timing = LLM(options.model, **common), LLM(options.model, **common), Clock(), Clock()
    stand_in = mock.patch.object(dispatch, "native", TimedNative(dispatch.native, timing))
    result, text = {}, texts.read()
    with Others() as others:
        for streams in map(int, options.streams.split(",")):
            prompts = texts.prompts(served.tokenizer, text, Case(streams, options.context, 1))
            whole = profile(served, clock, prompts, options.steps)
            with stand_in:
                calls = profile(timed, timing, prompts, options.steps)
            result[f"decode_{streams}"] = summary(whole, calls)
            show(f"decode, {streams} streams at {options.context} tokens of context", result[f"decode_{streams}"])
        prompt = texts.prompts(served.tokenizer, text, Case(1, options.chunk, 1))[0]
        with stand_in:
            calls = profile_prefill(timed, timing, prompt, max(1, options.steps // 10))
        result["prefill"] = summary(calls, calls)
        show(f"prefill of {options.chunk} tokens", result["prefill"])
    print(others)
    rounded = {what: {part.replace(" ", "_"): round(value, 3) for part, value in parts.items()} for what, parts in result.items()}
    print(json.dumps(rounded | {"others": round(others.share, 3)}))


if __name__ == "__main__":
    main()
