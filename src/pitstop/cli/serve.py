"""`pitstop serve`: the HTTP server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pitstop.cli.logs import configure_logs
from pitstop.cli.options import (
    Activations,
    Backend,
    Context,
    Device,
    KVCodec,
    KVGuard,
    KVMemory,
    Model,
    Threads,
    finite,
    get_model,
    size_option,
)
from pitstop.config import (
    MAX_SPECULATE,
    TLS,
    Adapter,
    ConnectionLimits,
    EngineConfig,
    HealthConfig,
    KVConfig,
    PoolConfig,
    ServerConfig,
    admin_key_from_env,
    api_keys_from_env,
    is_loopback,
)
from pitstop.errors import ConfigError
from pitstop.models.weights.fetch import DEFAULT_MODEL, MODELS

if TYPE_CHECKING:
    from pitstop.engine.protocol import Ready

_SERVER, _POOL, _ENGINE, _KV = ServerConfig(model_name=""), PoolConfig(), EngineConfig(model=""), KVConfig()  # for their defaults


def serve(
    model: Model = DEFAULT_MODEL,
    host: Annotated[str, typer.Option(help="Address to listen on. 0.0.0.0: every interface; set PITSTOP_API_KEYS then.")] = _SERVER.host,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = _SERVER.port,
    model_name: Annotated[str, typer.Option(help="The model's name in the API; by default its name here, or its file's or folder's.")] = "",
    device: Device = _ENGINE.device,
    backend: Backend = _ENGINE.backend,
    activations: Activations = _ENGINE.activations,
    threads: Threads = _ENGINE.threads,
    workers: Annotated[
        int, typer.Option(min=1, help="Worker processes, each with the model; --threads and --kv-memory are each one's.")
    ] = _POOL.workers,
    context: Context = _KV.context,
    kv: KVCodec = _KV.codec,
    kv_memory: KVMemory = _KV.memory,
    kv_guard: KVGuard = _KV.guard,
    lora: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FOLDER", help="Serve the LoRA adapter in FOLDER as model NAME, too. May be given several times."),
    ] = None,
    prefill_chunk: Annotated[int, typer.Option(min=1, help="Prompt tokens computed in one step.")] = _ENGINE.prefill_chunk,
    max_running: Annotated[int, typer.Option(min=1, help="Requests computed at once.")] = _ENGINE.max_running,
    speculate: Annotated[
        int, typer.Option(min=0, max=MAX_SPECULATE, help="Most tokens guessed ahead in one step; for text that repeats. 0: none.")
    ] = _ENGINE.speculate,
    max_waiting: Annotated[int, typer.Option(min=0, help="Requests that may wait; more get 429 Too Many Requests.")] = _POOL.max_waiting,
    max_waiting_tokens: Annotated[int, typer.Option(min=1, help="Prompt tokens of these.")] = _POOL.max_waiting_tokens,
    max_per_key: Annotated[
        int, typer.Option(min=0, help="Requests in flight with one API key; more get 429. 0: any number.")
    ] = _SERVER.max_per_key,
    drain_timeout: Annotated[
        float, typer.Option(min=0, callback=finite, help="Seconds that requests in flight get when the server stops.")
    ] = _POOL.stop_timeout,
    pooling: Annotated[
        Literal["auto", "last", "mean", "cls"],
        typer.Option(help="How hidden states become an embedding. auto: as the model's files say, if they do."),
    ] = "auto",
    share_weights: Annotated[
        bool,
        typer.Option(
            "--share-weights/--no-share-weights",
            help="Keep weights as the CPU's kernels read them in a file in the cache folder: all workers have them in memory once.",
        ),
    ] = _ENGINE.share_weights,
    prefix_cache: Annotated[
        bool, typer.Option("--prefix-cache/--no-prefix-cache", help="Reuse the KV of prompt beginnings seen before.")
    ] = _KV.prefix_cache,
    request_timeout: Annotated[
        float, typer.Option(min=0.001, callback=finite, help="Seconds a request may take.")
    ] = _SERVER.request_timeout,
    max_body: Annotated[int, size_option("--max-body", _SERVER.max_body, "Largest request body.")] = _SERVER.max_body,
    record_prompts: Annotated[
        bool, typer.Option("--record-prompts", help="When a worker dies, keep the prompts that it ran, for `pitstop replay`.")
    ] = _POOL.record_prompts,
    admin: Annotated[
        bool, typer.Option("--admin", help="Have the /admin routes. Their key is PITSTOP_ADMIN_KEY, which other hosts than loopback need.")
    ] = _SERVER.admin,
    max_connections: Annotated[
        int, typer.Option(min=1, help="Connections at once; probes are answered beyond.")
    ] = _SERVER.limits.max_connections,
    health_interval: Annotated[
        float, typer.Option(min=0.1, callback=finite, help="Seconds between questions to the workers, which /healthz reports on.")
    ] = _SERVER.health.interval,
    unready_when_full: Annotated[
        bool, typer.Option("--unready-when-full", help="/readyz says 503 while the queue is full.")
    ] = _SERVER.unready_when_full,
    tls_cert: Annotated[str, typer.Option(metavar="FILE", help="Serve HTTPS with this certificate chain, in PEM format.")] = "",
    tls_key: Annotated[str, typer.Option(metavar="FILE", help="Its key.")] = "",
    otel: Annotated[bool, typer.Option("--otel", help="Send traces to OpenTelemetry, as the OTEL_* variables say.")] = _SERVER.otel,
    log_level: Annotated[Literal["debug", "info", "warning", "error"], typer.Option(help="What is logged to stderr.")] = "info",
    log_format: Annotated[Literal["text", "json"], typer.Option(help="json: an object a line.")] = "text",
    log_prompts: Annotated[bool, typer.Option("--log-prompts", help="Log the prompts' text, too.")] = _SERVER.log_prompts,
) -> None:
    """Serve MODEL through the OpenAI API, by default on http://127.0.0.1:8000.

    A named model is fetched once. Clients need one of the keys in PITSTOP_API_KEYS (separated by commas) when that is set.
    Ctrl-C stops: new requests are refused, those in flight finish; a second Ctrl-C stops at once.
    """
    configure_logs(log_level, log_format)
    if bool(tls_cert) != bool(tls_key):
        raise ConfigError("--tls-cert and --tls-key belong together; give both, or neither for plain HTTP")
    path = get_model(model)
    server = ServerConfig(
        model_name=model_name or (model if model in MODELS else path.resolve().name if path.is_dir() else path.stem),
        host=host,
        port=port,
        api_keys=api_keys_from_env(),
        max_per_key=max_per_key,
        max_body=max_body,
        request_timeout=request_timeout,
        limits=ConnectionLimits(max_connections=max_connections),
        health=HealthConfig(interval=health_interval),
        unready_when_full=unready_when_full,
        tls=TLS(tls_cert, tls_key) if tls_cert else None,
        log_prompts=log_prompts,
        otel=otel,
        admin=admin,
        pooling="" if pooling == "auto" else pooling,
        admin_key=admin_key_from_env(),
    )
    engine = EngineConfig(
        model=str(path),
        adapters=adapters(lora or [], server.model_name),
        device=device,
        backend=backend,
        activations=activations,
        threads=threads,
        prefill_chunk=prefill_chunk,
        max_running=max_running,
        speculate=speculate,
        share_weights=share_weights,
        kv=KVConfig(codec=kv, memory=kv_memory, context=context, prefix_cache=prefix_cache, guard=kv_guard),
    )
    from pitstop.pool import spawn

    first = spawn()  # before the server's own imports: both take a second
    from pitstop.server import run

    pool = PoolConfig(
        max_waiting=max_waiting,
        max_waiting_tokens=max_waiting_tokens,
        stop_timeout=drain_timeout,
        workers=workers,
        record_prompts=record_prompts,
    )
    raise typer.Exit(run(server, pool, engine, lambda facts: print(announcement(server, facts), flush=True), first))


def adapters(words: list[str], model_name: str) -> tuple[Adapter, ...]:
    """What --lora names. Raises ConfigError."""
    found: dict[str, Adapter] = {}
    for word in words:
        name, equals, folder = word.partition("=")
        if not (name and equals and folder):
            raise ConfigError(f"--lora {word}: write it as NAME=FOLDER")
        if name in found or name == model_name:
            raise ConfigError(f"--lora {word}: {name} is taken; choose another name")
        found[name] = Adapter(name, folder)
    return tuple(found.values())


def announcement(server: ServerConfig, facts: Ready) -> str:
    """What the operator reads when the server is ready: the address, the capacity, and a line to try."""
    host = f"[{server.host}]" if ":" in server.host else server.host
    address = f"{server.scheme}://{'127.0.0.1' if host == '0.0.0.0' else host}:{server.port}"
    route, text = "chat/completions", "What is the capital of France?"
    question = {"model": server.model_name, "messages": [{"role": "user", "content": text}], "temperature": 0}
    if not facts.generates:
        route, question = "embeddings", {"model": server.model_name, "input": text}
    key = " -H 'Authorization: Bearer YOUR_KEY'" if server.api_keys else ""
    lines = [
        *facts.notes,
        f"Serving {server.model_name} on {address}/v1",
        f"Context {facts.context:,} tokens",
        *([] if server.api_keys or is_loopback(server.host) else ["Whoever reaches this port may use it: no PITSTOP_API_KEYS are set"]),
        "Try:",
        f"  curl {address}/v1/{route} -H 'Content-Type: application/json'{key} -d '{json.dumps(question)}'",
    ]
    return "\n".join(lines)
