"""`pitstop verify load`: latency and throughput under arrivals that do not wait for the server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pitstop.cli.verify import URL, ModelName, key

if TYPE_CHECKING:
    from pitstop.verify.load import Schedule
    from pitstop.verify.outcome import Outcome

ARRIVALS = ("poisson", "constant", "ramp")


def load(
    url: URL,
    model: ModelName = "",
    rate: Annotated[float, typer.Option(help="Requests a second; where --find-max begins.")] = 2.0,
    arrivals: Annotated[str, typer.Option(metavar="NAME|FILE", help="poisson, constant, ramp, or a file of due seconds.")] = "poisson",
    clients: Annotated[int, typer.Option(min=0, help="A closed loop of so many clients instead of a rate.")] = 0,
    mix: Annotated[str, typer.Option(metavar="NAME|FILE", help="small, account, or a YAML file of shapes.")] = "small",
    seconds: Annotated[float | None, typer.Option(help="How long requests are sent, 60 by default; with --find-max, in each run.")] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="How many requests.")] = None,
    find_max: Annotated[bool, typer.Option("--find-max", help="Search the highest rate that meets the limits.")] = False,
    seed: Annotated[int, typer.Option(help="Of arrivals, order and prompts.")] = 0,
    timeout: Annotated[float, typer.Option(help="Seconds for one answer.")] = 60.0,
    slo: Annotated[Path | None, typer.Option(metavar="FILE", help="The limits; see docs/verify.md.")] = None,
    text: Annotated[Path | None, typer.Option(metavar="FILE", help="Text for prompts; by default the Python language reference.")] = None,
    json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the outcome here.")] = None,
) -> None:
    """Send requests as they are due, whether or not earlier ones have ended, and judge latencies from those times.

    Exits 0 when all limits are met, else 1.
    """
    import msgspec
    from tqdm import tqdm

    from pitstop.verify.load import Plan, read_mix, run, run_find_max
    from pitstop.verify.slo import read_slo
    from pitstop.verify.target import connect

    limits = read_slo(slo).load
    plan = Plan(read_mix(mix), _schedule(rate, arrivals, clients, seconds, requests), seed, timeout, text)
    target = connect(url, model, key())
    bar = tqdm(disable=None, leave=False, bar_format="{desc}{postfix}")

    def show(phase: str, done: int, total: int) -> None:
        bar.set_description_str(f"{phase}: {done} of {total}" if total else phase, refresh=False)
        bar.update()

    with bar:
        outcome = (run_find_max if find_max else run)(target, limits, plan, show)
    if json is not None:
        json.write_bytes(msgspec.json.format(msgspec.json.encode(outcome)))
    print_outcome(outcome)
    raise typer.Exit(0 if outcome.passed else 1)


def _schedule(rate: float, arrivals: str, clients: int, seconds: float | None, requests: int | None) -> Schedule:
    from pitstop.verify.load import Schedule

    if arrivals in ARRIVALS:
        return Schedule(arrivals, rate, seconds, requests, clients)
    if not Path(arrivals).exists():
        raise typer.BadParameter(f"{arrivals!r} is neither one of {', '.join(ARRIVALS)} nor a file", param_hint="--arrivals")
    return Schedule("trace", rate, seconds, requests, clients, Path(arrivals))


def print_outcome(outcome: Outcome) -> None:
    """Tables, notes, checks and the verdict."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    for shown in outcome.tables:
        table = Table(title=shown.title, title_justify="left")
        for column in shown.columns:
            table.add_column(column, overflow="fold")
        for row in shown.rows:
            table.add_row(*row)
        console.print(table)
    for note in outcome.notes:
        console.print(f"note: {note}", markup=False)
    for check in outcome.checks:
        console.print(f"{'PASS' if check.passed else 'FAIL'} {check.name}: {check.reason}", markup=False)
    console.print("PASS" if outcome.passed else "FAIL", style="bold")
