"""`pitstop upgrade`: a running server goes over to another model, codec or version, and nobody's request suffers."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pitstop.cli.options import MODEL_HELP, parse_size
from pitstop.config import admin_key_from_env, api_keys_from_env
from pitstop.errors import PitstopError, Unavailable

if TYPE_CHECKING:
    import httpx

_POLL = 0.2  # seconds
_ROUTE = "/admin/upgrade"
_ENDS = ("done", "rolled_back", "cancelled")


def upgrade(
    url: Annotated[str, typer.Option(help="The server, which runs with --admin.")] = "http://127.0.0.1:8000",
    model: Annotated[str | None, typer.Option("--model", "-m", help=MODEL_HELP)] = None,
    kv: Annotated[str | None, typer.Option("--kv", metavar="CODEC", help="As of `pitstop serve`.")] = None,
    kv_memory: Annotated[int | None, typer.Option(parser=parse_size, metavar="SIZE", help="As of `pitstop serve`.")] = None,
    kv_guard: Annotated[Literal["warn", "strict", "off"] | None, typer.Option(help="As of `pitstop serve`.")] = None,
    context: Annotated[int | None, typer.Option(min=0, help="As of `pitstop serve`.")] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"] | None, typer.Option(help="As of `pitstop serve`.")] = None,
    backend: Annotated[Literal["auto", "cpu", "ref"] | None, typer.Option(help="As of `pitstop serve`.")] = None,
    activations: Annotated[Literal["exact", "int8", "fp32"] | None, typer.Option(help="As of `pitstop serve`.")] = None,
    threads: Annotated[int | None, typer.Option(min=0, help="As of `pitstop serve`.")] = None,
    prefill_chunk: Annotated[int | None, typer.Option(min=1, help="As of `pitstop serve`.")] = None,
    max_running: Annotated[int | None, typer.Option(min=1, help="As of `pitstop serve`.")] = None,
    python: Annotated[
        str | None, typer.Option(metavar="FILE", help="The interpreter of another installation of Pitstop, which runs the new worker.")
    ] = None,
    max_kl: Annotated[
        float | None,
        typer.Option(min=0, help="Nats a token that the new answers may be from the present ones where they may differ; by default 0.01."),
    ] = None,
    warm_time: Annotated[
        float | None, typer.Option(min=0, max=600, help="Seconds for replaying prompt beginnings into the new worker; by default 30.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the end and tell how it goes, or only begin.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the server's report and nothing else.")] = False,
) -> None:
    """Start a worker beside the one that serves, examine it, and let it take over. What is not named stays as it is.

    Whatever fails before the new worker takes over leaves everything as it was. Exits 0 when it serves, 1 with the reason when not.
    The key is PITSTOP_ADMIN_KEY, if the server has one.
    """
    wish = {
        "model": _absolute(model),
        "kv": kv,
        "kv_memory": kv_memory,
        "kv_guard": kv_guard,
        "context": context,
        "device": device,
        "backend": backend,
        "activations": activations,
        "threads": threads,
        "prefill_chunk": prefill_chunk,
        "max_running": max_running,
        "python": _absolute(python),
        "max_kl": max_kl,
        "warm_time": warm_time,
    }
    with _client(url) as client:
        report = _call(client, "POST", {name: value for name, value in wish.items() if value is not None})
        if wait:
            report = _follow(client, quiet=as_json)
    if as_json:
        print(json.dumps(report, indent=2))
    elif wait:
        _tell(report)
    else:
        print(f"The upgrade has begun; {url.rstrip('/')}{_ROUTE} tells how it goes.")
    raise typer.Exit(1 if wait and report["state"] != "done" else 0)


def _absolute(path: str | None) -> str | None:
    """A path that is here as the server, which may run elsewhere on this machine, can find it; anything else as it is."""
    return str(Path(path).expanduser().absolute()) if path and Path(path).expanduser().exists() else path


def _client(url: str) -> httpx.Client:
    import httpx

    key = admin_key_from_env() or next(iter(api_keys_from_env()), "none")
    return httpx.Client(base_url=url.rstrip("/"), headers={"Authorization": f"Bearer {key}"}, timeout=60)


def _call(client: httpx.Client, method: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Raises PitstopError with the server's own words."""
    import httpx

    try:
        response = client.request(method, _ROUTE, json=body)
        answer = response.json()
    except httpx.HTTPError as error:
        raise Unavailable(f"{client.base_url} does not answer: {error}") from error
    except ValueError:
        raise PitstopError(f"{client.base_url} does not answer as a Pitstop server does") from None
    if response.is_success:
        return answer
    reason = answer.get("error", {}).get("message", response.text[:200]) if isinstance(answer, dict) else response.text[:200]
    if response.status_code == 404:
        reason += " The server has no such route: start it with `pitstop serve --admin`."
    if response.status_code == 401:
        reason += "; set PITSTOP_ADMIN_KEY"
    raise PitstopError(reason)


def _follow(client: httpx.Client, quiet: bool) -> dict[str, Any]:
    """The last report; each phase is told when it is over."""
    told = 0
    while True:
        report = _call(client, "GET")
        ended = report["state"] in _ENDS
        over = report["phases"] if ended else report["phases"][:-1]
        for phase in over[told:]:
            if not quiet:
                print(_line(phase, report), flush=True)
        told = len(over)
        if ended:
            return report
        time.sleep(_POLL)


def _tell(report: dict[str, Any]) -> None:
    """How it ended."""
    if report["state"] == "done":
        print("Done: the new worker serves.")
    else:
        what = "Cancelled" if report["state"] == "cancelled" else "Rolled back"
        typer.secho(f"{what}, the old worker serves on: {report['reason']}", fg="red")


def _line(phase: dict[str, Any], report: dict[str, Any]) -> str:
    name, line = phase["state"], f"{phase['state']:<10} {phase['seconds']:6.1f} s"
    gate, memory, warmed = report["gate"] or {}, report["memory"], report["warmed"]
    if name == "checking" and memory:
        words = {"weights": "of weights", "kv": "of KV", "free": "free"} | ({"lent": "lent by the old worker"} if memory["lent"] else {})
        parts = (f"{memory[part] / 2**20:.0f} MiB {word}" for part, word in words.items())
        line += f"  {', '.join(parts)}"
    elif name == "gating" and gate.get("canaries_equal"):
        line += f"  {gate['canaries_equal']} canary answers equal"
    elif name == "gating" and gate.get("mean_kl") is not None:
        line += f"  mean KL divergence {gate['mean_kl']:.2g} over {gate['positions']} positions, {gate['same_top']:.1%} same top tokens"
    elif name == "gating" and gate.get("smoke_tokens"):
        line += "  other words: it answers, the same twice"
    elif name == "warming":
        line += f"  {warmed['prompts']} prompt beginnings, {warmed['tokens']} tokens"
    return line
