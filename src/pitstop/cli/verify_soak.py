"""`pitstop verify soak URL`: does anything grow, linger, restart or drift under hours of load?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pitstop.cli.verify import URL, ModelName, key
from pitstop.cli.verify_load import print_outcome
from pitstop.errors import ConfigError

if TYPE_CHECKING:
    from tqdm import tqdm

    from pitstop.verify.soak import Progress


def soak(
    url: URL,
    model: ModelName = "",
    hours: Annotated[float | None, typer.Option(help="How long; by default two minutes.")] = None,
    seconds: Annotated[float | None, typer.Option(help="How long, in seconds.")] = None,
    rate: Annotated[float | None, typer.Option(help="Requests a second, Poisson; by default --clients send one after another.")] = None,
    clients: Annotated[int | None, typer.Option(help="Clients that wait for an answer before they ask again; by default 8.")] = None,
    pid: Annotated[
        int | None, typer.Option(help="The server's main process; by default who listens on the port, when that is here.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of requests and arrivals; by default 0.")] = None,
    state: Annotated[Path | None, typer.Option(metavar="FILE", help="A new file for the samples, so that this can be resumed.")] = None,
    resume: Annotated[Path | None, typer.Option(metavar="FILE", help="Go on with the soak that this file holds.")] = None,
    slo: Annotated[Path | None, typer.Option(metavar="FILE", help="The limits, as docs/slo.yaml; by default those in it.")] = None,
    json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the outcome here.")] = None,
) -> None:
    """Send a mixture of requests, aborts and bad inputs to a server that nobody else uses, and follow what it holds whenever it is idle.

    Memory, file handles and threads are judged by the slopes of least-squares lines: a soak passes when the upper ends of their 95 %
    confidence intervals are within the limits, so one that was too short to tell fails. Ctrl-C ends it with the verdict so far.
    Exits 0 when all checks hold, else 1; 130 after Ctrl-C.
    """
    import msgspec
    from tqdm import tqdm

    from pitstop.verify import soak as tier
    from pitstop.verify.slo import read_slo
    from pitstop.verify.target import connect

    limits = read_slo(slo).soak
    given: dict[str, Any] = {"rate": rate, "clients": clients, "pid": pid, "seed": seed, "seconds": _seconds(hours, seconds)}
    given = {name: value for name, value in given.items() if value is not None}
    if resume is not None and (given or state is not None):
        raise ConfigError(f"--resume goes on with the plan that is in {resume}; leave out --{next(iter(given), 'state')}")
    plan = tier.Plan(**given)
    target = connect(url, model, key())
    bar = tqdm(disable=None, leave=False, bar_format="{desc}")
    with bar:
        if resume is not None:
            outcome = tier.resume(target, limits, resume, lambda now: _show(bar, now))
        else:
            outcome = tier.run(target, limits, plan, state, lambda now: _show(bar, now))
    if json is not None:
        json.write_bytes(msgspec.json.format(msgspec.json.encode(outcome)))
    print_outcome(outcome)
    raise typer.Exit(130 if outcome.figures.get("interrupted") else 0 if outcome.passed else 1)


def _seconds(hours: float | None, seconds: float | None) -> float | None:
    if hours is not None and seconds is not None:
        raise ConfigError("give --hours or --seconds, not both")
    return hours * 3600 if hours is not None else seconds


def _show(bar: tqdm, now: Progress) -> None:
    left, slope = int(now.left), now.memory
    growth = (
        f"{slope.value / 1024:+.3f} KiB a request ({slope.low / 1024:+.3f} to {slope.high / 1024:+.3f})" if slope else "cannot be told yet"
    )
    clock = f"{left // 3600}:{left // 60 % 60:02}:{left % 60:02}"
    bar.set_description_str(f"soak: {clock} left, {now.requests:,} requests, {now.errors} errors, memory {growth}")
