"""One small frozen dataclass per component. The only reader of the environment. What is "auto" here is resolved by `resolve`."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from pitstop.errors import ConfigError

MAX_SPECULATE = 32
"""Tokens that may be guessed ahead a step and stream."""


@dataclass(frozen=True, slots=True)
class KVConfig:
    """The KV cache. `memory` is the pool's budget in bytes, tails included; 0 resolves to a share of what is free."""

    codec: str = "raw16"
    memory: int = 0
    context: int = 0  # longest prompt + answer in tokens; 0: the model's own
    prefix_cache: bool = True
    cached_tails: int = 32  # open segments that the prefix index may keep, one tail slot each
    guard: str = "warn"  # when a compressed codec changes the model too much: warn, strict (no start), off (not measured)


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter: the folder `path`, served as `name`. digest: of all that it held when it was read, "" before; size: in bytes."""

    name: str
    path: str
    digest: str = ""
    rank: int = 0
    size: int = 0
    base: str = ""  # the model that it says it was trained on

    @property
    def id(self) -> str:
        """What requests, prefixes and workers know it by: another adapter of the same name has another one."""
        return f"{self.name}@{self.digest}"


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The engine worker. `prefill_chunk` is how many prompt tokens one step computes, all requests together."""

    model: str  # path of the weights
    device: str = "auto"  # auto, cpu, cuda
    backend: str = "auto"  # auto, cpu (native kernels), ref (plain torch)
    activations: str = "exact"  # what quantised weights are multiplied by: exact (int16), int16, int8, fp32
    threads: int = 0  # 0: as many as this process may use, divided by `workers`
    workers: int = 1  # that share this machine: what is free is divided by it
    prefill_chunk: int = 512
    max_running: int = 32
    ageing: float = 10.0  # seconds of waiting that are worth one step of priority
    speculate: int = 0  # most tokens that are guessed ahead a step and stream; 0: none
    kv: KVConfig = field(default_factory=KVConfig)
    adapters: tuple[Adapter, ...] = ()
    share_weights: bool = True  # packed for the CPU, in a file in the cache folder that all workers of the model map


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """The workers as seen from the front. Times in seconds."""

    max_waiting: int = 256  # requests at the door that have no answer token yet; more are refused with 429
    max_waiting_tokens: int = 1 << 17  # prompt tokens of these
    start_timeout: float = 300.0
    stop_timeout: float = 30.0  # how long a drain may take
    workers: int = 1
    restart_backoff: float = 0.5  # doubles with each crash in a row, up to 30 s
    crash_dir: str = field(default_factory=lambda: str(cache_dir() / "crashes"))  # for a dead worker's last plans; "": nowhere
    record_prompts: bool = False  # with the tokens of prompts and answers
    hang_floor: float = 2.0  # a worker with work that is silent for less is never taken for hung


@dataclass(frozen=True, slots=True)
class TLS:
    """Paths of a certificate chain and its key, in PEM format."""

    cert: str
    key: str


@dataclass(frozen=True, slots=True)
class HealthConfig:
    """How often workers are asked what they must know. Times in seconds."""

    interval: float = 2.0  # between two rounds
    retry: float = 1.0  # between two rounds while a worker is in doubt
    timeout: float = 10.0  # for an answer
    misses: int = 2  # in a row, until a worker is called ill; one right answer and it is well again


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What one client's connection may cost. Times in seconds, sizes in bytes."""

    max_connections: int = 1024
    max_head: int = 64 << 10  # request line and headers
    max_pipelined: int = 16  # requests that wait behind the one that is being answered
    head_timeout: float = 10.0  # from a request's first byte to the end of its headers
    stall_timeout: float = 30.0  # in which a client must take something of what it was sent


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The HTTP front. Sizes in bytes, times in seconds."""

    model_name: str
    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    max_per_key: int = 0  # requests in flight with one key; 0: any number
    max_body: int = 8 << 20
    max_choices: int = 16
    request_timeout: float = 600.0
    keep_alive: float = 75.0  # longer than common proxies' upstream keep-alive
    limits: ConnectionLimits = ConnectionLimits()
    health: HealthConfig = HealthConfig()
    unready_when_full: bool = False  # whether /readyz says 503 while the queue is full
    tls: TLS | None = None
    log_prompts: bool = False  # whether the access log has the prompts' text
    otel: bool = False  # whether traces go to OpenTelemetry
    admin: bool = False  # whether there are /admin routes
    pooling: str = ""  # how hidden states become an embedding: last, mean or cls; "": as the model's files say
    admin_key: str = ""  # what they need; without one they need what the API needs, and are for loopback only

    @property
    def scheme(self) -> str:
        return "https" if self.tls is not None else "http"

    def __post_init__(self) -> None:
        if self.admin and not self.admin_key and not is_loopback(self.host):
            raise ConfigError(f"--admin on --host {self.host} needs a key: set PITSTOP_ADMIN_KEY, or listen on 127.0.0.1")
        if self.max_per_key and not self.api_keys:
            raise ConfigError("--max-per-key counts by API key, and none is set; set PITSTOP_API_KEYS, too")


def cache_dir() -> Path:
    """Where fetched models live: $PITSTOP_HOME, else $XDG_CACHE_HOME/pitstop, else ~/.cache/pitstop."""
    if home := os.environ.get("PITSTOP_HOME"):
        return Path(home)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pitstop"


def api_keys_from_env() -> tuple[str, ...]:
    """Keys in $PITSTOP_API_KEYS, separated by commas. Not an option, so that they do not show in a process list."""
    return tuple(key.strip() for key in os.environ.get("PITSTOP_API_KEYS", "").split(",") if key.strip())


def admin_key_from_env() -> str:
    """$PITSTOP_ADMIN_KEY, or ""."""
    return os.environ.get("PITSTOP_ADMIN_KEY", "").strip()


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to a server that listens on `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return host == "localhost"


def usable_cores() -> int:
    """Cores this process may run on (the affinity mask, not the machine's count)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def resolve(config: EngineConfig, *, model_context: int, cuda: bool, free_memory: int) -> EngineConfig:
    """Replace every "auto" and 0 by what will be used. `free_memory` in bytes, of the host; on a GPU kv.memory stays 0 until it is known
    what the weights leave (engine.memory).

    Raises ConfigError for what cannot be honoured.
    """
    device = config.device
    if device == "auto":
        device = "cuda" if cuda else "cpu"
    if device not in ("cpu", "cuda"):
        raise ConfigError(f"--device {device}: choose auto, cpu or cuda")
    if device == "cuda" and not cuda:
        raise ConfigError("--device cuda: no CUDA device is usable; choose --device cpu")
    if config.backend not in ("auto", "cpu", "ref"):
        raise ConfigError(f"--backend {config.backend}: choose auto, cpu or ref")
    if config.backend == "cpu" and device != "cpu":
        raise ConfigError(f"--backend cpu does not run on --device {device}")
    if config.activations not in ("exact", "int16", "int8", "fp32"):
        raise ConfigError(f"--activations {config.activations}: choose exact, int16, int8 or fp32")
    if config.kv.guard not in ("warn", "strict", "off"):
        raise ConfigError(f"--kv-guard {config.kv.guard}: choose warn, strict or off")
    for name in ("prefill_chunk", "max_running"):
        if getattr(config, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 1")
    if not 0 <= config.speculate <= MAX_SPECULATE:
        raise ConfigError(f"--speculate {config.speculate}: choose 0 (off) to {MAX_SPECULATE} tokens")
    context = config.kv.context or model_context
    if not 0 < context <= model_context:
        raise ConfigError(f"--context {context}: this model's context is {model_context} tokens")
    memory = config.kv.memory or (min(free_memory // 4, 4 << 30) // config.workers if device == "cpu" else 0)
    threads = config.threads or max(1, usable_cores() // config.workers)
    kv = replace(config.kv, context=context, memory=memory)
    return replace(config, device=device, threads=threads, kv=kv)
