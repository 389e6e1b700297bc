"""`pitstop generate`: complete one prompt in this process, without a server."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from pitstop.cli.options import (
    Activations,
    Backend,
    Context,
    Device,
    KVCodec,
    KVGuard,
    KVMemory,
    ModelOption,
    Threads,
    get_model,
)
from pitstop.config import KVConfig
from pitstop.models.weights.fetch import DEFAULT_MODEL
from pitstop.types import SamplingParams

MaxTokens = Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")]
Temperature = Annotated[float, typer.Option(min=0, help="0: always the likeliest token. Higher: more varied.")]
TopP = Annotated[float, typer.Option(min=0, max=1, help="Choose among the likeliest tokens that together have this probability.")]
TopK = Annotated[int, typer.Option(min=0, help="Choose among this many likeliest tokens; 0: all.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same answer.")]


def generate(
    prompt: Annotated[str, typer.Argument(help="The text to continue; - reads it from standard input.")],
    model: ModelOption = DEFAULT_MODEL,
    max_tokens: MaxTokens = 128,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    top_k: TopK = 0,
    seed: Seed = 0,
    stop: Annotated[list[str] | None, typer.Option(help="End the answer before this text; may be given several times.")] = None,
    device: Device = "auto",
    backend: Backend = "auto",
    activations: Activations = "exact",
    threads: Threads = 0,
    context: Context = 0,
    kv: KVCodec = KVConfig().codec,
    kv_memory: KVMemory = 0,
    kv_guard: KVGuard = KVConfig().guard,
) -> None:
    """Continue PROMPT and print the continuation. The prompt is taken as it is, without a chat template: see `pitstop chat` for that."""
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed, stop=tuple(stop or ()))
    text = sys.stdin.read() if prompt == "-" else prompt
    path = get_model(model)
    from pitstop import LLM

    engine = {"device": device, "backend": backend, "activations": activations, "threads": threads}
    cache = {"codec": kv, "memory": kv_memory, "guard": kv_guard, "context": context}
    llm = LLM(str(path), **engine, **cache)
    print(llm.generate([text], params)[0].text)
