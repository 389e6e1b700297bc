"""The real HTTP front before tests/fake_worker.py: `python tests/fake_server.py [options] [-- worker options]`, or forked by nursery.py.

Prints "listening PORT" and later "ready".
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from faults import Fault
from lasting import Lasting
from pools import toy_model
from toys import CHAT_TEMPLATE, TOOL_TEMPLATE

from pitstop.cli.logs import configure_logs
from pitstop.config import TLS, Adapter, ConnectionLimits, EngineConfig, HealthConfig, PoolConfig, ServerConfig
from pitstop.engine import protocol
from pitstop.errors import InvalidRequest
from pitstop.models.lora.file import check_name
from pitstop.pool import Opened

run = importlib.import_module("pitstop.server.run")  # the module: the package has a function of its name

STRICT = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('No system turns, please.') }}{% endif %}"
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Turns must alternate.') }}{% endif %}{% endfor %}"
)


def read(options: argparse.Namespace, model: str) -> Opened:
    template = TOOL_TEMPLATE if options.tool_template else CHAT_TEMPLATE
    return toy_model(model, STRICT + template if options.strict_template else template)


def read_adapter(name: str, path: str, model: str) -> Adapter:
    """A folder's name is all that it holds; one called "bad" is none."""
    check_name(name)
    if Path(path).name == "bad":
        raise InvalidRequest(f"path: {path} is bad for {model}", "path")
    return Adapter(name, path, Path(path).name, rank=8, size=1000, base="somebody's")


async def serve(options: argparse.Namespace) -> None:
    server = ServerConfig(
        "toy",
        port=0,
        api_keys=tuple(options.key),
        max_per_key=options.max_per_key,
        max_choices=16,
        request_timeout=options.timeout,
        limits=ConnectionLimits(options.max_connections, head_timeout=options.head_timeout, stall_timeout=options.stall_timeout),
        health=HealthConfig(options.health_interval, retry=0.1, timeout=options.health_timeout),
        unready_when_full=options.unready_when_full,
        tls=TLS(*options.tls) if options.tls else None,
        log_prompts=options.log_prompts,
        otel=options.otel,
        admin=options.admin,
        admin_key=options.admin_key,
        pooling=options.pooling,
    )
    pool = PoolConfig(
        max_waiting=options.max_waiting,
        max_waiting_tokens=options.max_waiting_tokens,
        stop_timeout=options.stop_timeout,
        restart_backoff=0.1,
        crash_dir="",
    )
    worker = (sys.executable, str(Path(__file__).parent / "fake_worker.py"), *options.worker)
    create_app = run.create_app
    if options.fault:
        run.create_app = lambda service: Fault(create_app(service), options.fault)
    elif options.lasting:
        run.create_app = lambda service: Lasting(create_app(service), options.lasting)
    adapters = tuple(Adapter(*words.split("=")) for words in options.lora)
    runner = run.Runner(server, pool, EngineConfig(model=options.model, adapters=adapters), worker)
    runner._service.read_adapter = read_adapter
    running = asyncio.create_task(runner.run(partial(read, options), lambda facts: print("ready", flush=True)))
    await asyncio.sleep(0)  # until it has bound the port
    print("listening", runner.port, flush=True)
    await running


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--key", action="append", default=[])
    parser.add_argument("--max-waiting", type=int, default=64)
    parser.add_argument("--max-waiting-tokens", type=int, default=1 << 17)
    parser.add_argument("--max-per-key", type=int, default=0)
    parser.add_argument("--stop-timeout", type=float, default=10)
    parser.add_argument("--timeout", type=float, default=60)
    parser.add_argument("--strict-template", action="store_true")
    parser.add_argument("--tool-template", action="store_true", help="the model is one that was trained for tools")
    parser.add_argument("--admin", action="store_true")
    parser.add_argument("--admin-key", default="")
    parser.add_argument("--model", default="toy", help="as pools.toy_model has it")
    parser.add_argument("--pooling", default="")
    parser.add_argument("--max-logits", type=int, default=protocol.MAX_LOGITS)
    parser.add_argument("--max-connections", type=int, default=1024)
    parser.add_argument("--head-timeout", type=float, default=10)
    parser.add_argument("--stall-timeout", type=float, default=30)
    parser.add_argument("--health-interval", type=float, default=600)
    parser.add_argument("--health-timeout", type=float, default=1)
    parser.add_argument("--unready-when-full", action="store_true")
    parser.add_argument("--tls", nargs=2, metavar=("CERT", "KEY"))
    parser.add_argument("--otel", action="store_true")
    parser.add_argument("--lora", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--log-format", default="text")
    parser.add_argument("--log-prompts", action="store_true")
    parser.add_argument("--fault", default="", help="one of tests/faults.py")
    parser.add_argument("--lasting", action="append", default=[], help="of tests/lasting.py")
    parser.add_argument("worker", nargs="*")
    return parser.parse_args(words)


def main(words: Sequence[str]) -> None:
    options = parse(words)
    protocol.MAX_LOGITS = options.max_logits
    configure_logs("info", options.log_format)
    asyncio.run(serve(options))


if __name__ == "__main__":
    main(sys.argv[1:])
