"""`pitstop chat`: talk to a model in the terminal, in this process or through a server."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import Annotated

import typer

from pitstop.cli.generate import MaxTokens, Seed, Temperature, TopK, TopP
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
from pitstop.config import KVConfig, api_keys_from_env
from pitstop.errors import InvalidRequest, PitstopError, Unavailable
from pitstop.models.weights.fetch import DEFAULT_MODEL
from pitstop.types import SamplingParams

Message = dict[str, str]
Answer = Callable[[list[Message]], Iterator[str]]
"""From the messages so far to the pieces of the next answer."""


def chat(
    model: ModelOption = DEFAULT_MODEL,
    url: Annotated[str, typer.Option(help="Talk to the server here, like http://127.0.0.1:8000, instead of loading a model.")] = "",
    system: Annotated[str, typer.Option(help="A system message to begin with.")] = "",
    max_tokens: MaxTokens = 512,
    temperature: Temperature = 0.7,
    top_p: TopP = 0.9,
    top_k: TopK = 0,
    seed: Seed = 0,
    device: Device = "auto",
    backend: Backend = "auto",
    activations: Activations = "exact",
    threads: Threads = 0,
    context: Context = 0,
    kv: KVCodec = KVConfig().codec,
    kv_memory: KVMemory = 0,
    kv_guard: KVGuard = KVConfig().guard,
) -> None:
    """Talk to a model. /reset forgets the conversation, /quit or Ctrl-D ends it, Ctrl-C stops an answer.

    With --url and API keys, the first key in PITSTOP_API_KEYS is sent.
    """
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed)
    if url:
        converse(lambda messages: ask_server(url, messages, params), system)
        return
    path = get_model(model)
    from pitstop import LLM

    engine = {"device": device, "backend": backend, "activations": activations, "threads": threads}
    cache = {"codec": kv, "memory": kv_memory, "guard": kv_guard, "context": context}
    llm = LLM(str(path), **engine, **cache)
    converse(lambda messages: llm.stream_chat(messages, params), system)


def converse(answer: Answer, system: str = "") -> None:
    """Read lines from standard input until it ends, and print each answer as it comes.

    A line whose answer fails is forgotten, so that the next one can go on from the same history. Raises PitstopError when standard
    input is no terminal, so that a script learns of it.
    """
    if sys.stdin.isatty():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  line editing in input()
    beginning = [{"role": "system", "content": system}] if system else []
    messages = list(beginning)
    while (line := _read_line()) is not None:
        if line == "/quit":
            return
        if line == "/reset":
            messages = list(beginning)
            continue
        if not line:
            continue
        messages.append({"role": "user", "content": line})
        try:
            text = _print_pieces(answer(messages))
        except PitstopError as error:
            if not sys.stdin.isatty():
                raise
            typer.secho(str(error), fg="red", err=True)
            messages.pop()
            continue
        messages.append({"role": "assistant", "content": text})


def _read_line() -> str | None:
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return None


def _print_pieces(pieces: Iterator[str]) -> str:
    """Print pieces as they come; Ctrl-C ends the answer, not the conversation. Returns what was printed."""
    text = ""
    try:
        for piece in pieces:
            print(piece, end="", flush=True)
            text += piece
    except KeyboardInterrupt:
        pieces.close()
    print(flush=True)
    return text


def ask_server(url: str, messages: list[Message], params: SamplingParams) -> Iterator[str]:
    """The pieces of a streamed answer of the server at `url`.

    Raises Unavailable when nobody answers or the stream ends early, InvalidRequest with the server's message when it refuses.
    """
    import httpx

    keys = api_keys_from_env()
    headers = {"Authorization": f"Bearer {keys[0]}"} if keys else {}
    base = url.rstrip("/").removesuffix("/v1") + "/v1"
    try:
        with httpx.Client(headers=headers, timeout=httpx.Timeout(10, read=600)) as client:
            listed = client.get(f"{base}/models")
            _check(listed.status_code, listed.text)
            body = {
                "model": listed.json()["data"][0]["id"],
                "messages": messages,
                "stream": True,
                "max_tokens": params.max_tokens,
                "temperature": params.temperature,
                "top_p": params.top_p,
                "seed": params.seed,
            } | ({"top_k": params.top_k} if params.top_k else {})
            with client.stream("POST", f"{base}/chat/completions", json=body) as response:
                if response.status_code != 200:
                    _check(response.status_code, response.read().decode(errors="replace"))
                yield from _pieces(response.iter_lines())
    except httpx.InvalidURL as error:
        raise Unavailable(f"--url {url}: {error}") from error
    except (httpx.HTTPError, LookupError, ValueError) as error:
        raise Unavailable(f"--url {url}: no Pitstop server answers there ({error or type(error).__name__})") from error


def _pieces(lines: Iterator[str]) -> Iterator[str]:
    """The text in a stream of server-sent events."""
    for line in lines:
        data = line.removeprefix("data:").strip()
        if not line.startswith("data:"):
            continue
        if data == "[DONE]":
            return
        event = json.loads(data)
        if "error" in event:
            raise Unavailable(event["error"]["message"])
        for choice in event["choices"]:
            if piece := choice["delta"].get("content"):
                yield piece
    raise Unavailable("the server ended the stream before the answer was complete")


def _check(status: int, body: str) -> None:
    if status == 200:
        return
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, LookupError, TypeError):
        message = body[:200]
    raise InvalidRequest(f"the server answers {status}: {message}")
