"""`pitstop verify URL`: all tiers against a server, one verdict, one report. `pitstop verify report`: that page again, from its JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pitstop.cli.verify import URL, ModelName, address, key

if TYPE_CHECKING:
    from pitstop.verify.outcome import Outcome, Report
    from pitstop.verify.slo import SLO
    from pitstop.verify.suite import Lengths, Show, Stage
    from pitstop.verify.target import Target

MARKS = {"held": "✓", "failed": "✗", "not judged": "–", "not run": "–"}
COLOURS = {"held": "green", "failed": "bold red", "not judged": "dim", "not run": "dim"}
REASONS = 12
Limits = Annotated[Path | None, typer.Option("--slo", metavar="FILE", help="The limits, as docs/slo.yaml; by default those in it.")]


def verify_all(
    url: URL,
    model: ModelName = "",
    slo: Limits = None,
    against: Annotated[str, typer.Option(metavar="URL", help="A second server, shown beside the first and not judged.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Shorter load and soak, memory not judged: a first look.")] = False,
    soak: Annotated[float | None, typer.Option(min=10, metavar="SECONDS", help="How long the soak takes; by default 120.")] = None,
    rate: Annotated[float | None, typer.Option(min=0.01, max=10_000, help="Requests a second in the load tier; by default 2.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of arrivals, prompts and order.")] = 0,
    pid: Annotated[
        int | None, typer.Option(min=1, help="The server's main process; by default who listens on the port, when that is here.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where report.html, report.json and junit.xml are written.")] = Path(
        "verify-report"
    ),
) -> None:
    """Run the functional, load and soak tiers against a server and write one report.

    Exits 0 when every check holds, 1 when one does not, 130 after Ctrl-C; what there is until then is written.
    """
    import dataclasses

    from pitstop.verify import report
    from pitstop.verify.slo import read_slo
    from pitstop.verify.suite import QUICK, QUICK_LIMITS, WHOLE, run_stages
    from pitstop.verify.target import connect

    limits = QUICK_LIMITS if quick and slo is None else read_slo(slo)
    given = {name: value for name, value in (("soak", soak), ("rate", rate)) if value is not None}
    lengths = dataclasses.replace(QUICK if quick else WHOLE, **given)
    target = connect(url, model, key())
    other = connect(address(against), "", key()) if against else None
    outcomes = []
    for outcome in run_stages(_stages(target, other, limits, lengths, seed, pid), _progress):
        outcomes.append(outcome)
        _say(outcome)
    made = report.assemble(["pitstop", *sys.argv[1:]], outcomes)
    paths = report.write(made, out)
    print_verdict(made)
    if other is None:
        print("Quality compares two servers: pitstop verify quality A B, or --against B here.")
    print(f"Written: {', '.join(map(str, paths))}")
    interrupted = any(outcome.figures.get("interrupted") for outcome in outcomes)
    raise typer.Exit(130 if interrupted else 0 if made.passed else 1)


def verify_report(
    results: Annotated[list[Path], typer.Argument(metavar="RESULT.json…", help="Files that verify wrote; the first's server is judged.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE.html", help="The page.")] = Path("report.html"),
) -> None:
    """Make the page again from one or more results; several servers stand side by side. Exits 0 when the first one passes."""
    from pitstop.errors import ConfigError
    from pitstop.verify import report

    joined = report.join([report.read(path) for path in results])
    try:
        out.write_text(report.render(joined), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{out}: {error.strerror}") from None
    print_verdict(joined)
    raise typer.Exit(0 if joined.passed else 1)


def _stages(target: Target, other: Target | None, limits: SLO, lengths: Lengths, seed: int, pid: int | None) -> Iterator[Stage]:
    """The first server's, then the second's, so that neither computes while the other is measured; only the first is soaked.

    The second one's load comes first: what it still computes for clients that have left must not count against it. Quality takes both.
    """
    from pitstop.verify.suite import quality_stage, same_tokens, stages

    yield from stages(target, limits, lengths, seed, pid)
    if other is None:
        return
    of_other = {stage.tier: stage for stage in stages(other, limits, lengths, seed) if stage.tier != "soak"}
    yield from (of_other[tier] for tier in ("load", "functional") if tier in of_other)
    if same_tokens(other, target):
        yield quality_stage(target, other, limits, lengths, seed)
    else:
        typer.echo("– quality     left out: the servers do not split text into the same tokens, or do not tell by /tokenize")


def _progress(stage: Stage) -> Show:
    """A bar on the terminal for as long as the tier reports."""
    from tqdm import tqdm

    bar = tqdm(disable=None, leave=False, bar_format="{desc} {percentage:3.0f} %|{bar:20}| {n}/{total}")

    def show(what: str, done: int, total: int) -> None:
        bar.total = total or None
        bar.n = done
        bar.set_description_str(f"{stage.tier}: {what[:40]}", refresh=False)
        bar.refresh()
        if total and done >= total:
            bar.clear()

    return show


def _say(outcome: Outcome) -> None:
    held = sum(check.passed for check in outcome.checks)
    mark = typer.style("✓", fg="green") if outcome.passed else typer.style("✗", fg="red")
    where = f"{outcome.target.get('server', '')} at {outcome.target['url']}"
    typer.echo(f"{mark} {outcome.tier:10}  {held} of {len(outcome.checks)} checks hold  ({outcome.seconds:.0f} s, {where})")


def print_verdict(made: Report) -> None:
    """A table of what was measured against the limits, the reasons of what failed, and PASS or FAIL."""
    from rich.console import Console
    from rich.markup import escape

    from pitstop.verify.report import why

    console = Console(highlight=False, soft_wrap=False)
    console.print(_table(made))
    failures = [check for outcome in made.judged for check in outcome.failures]
    for check in failures[:REASONS]:
        console.print(f"[bold red]✗[/] [bold]{escape(check.name)}[/] {escape(why(check))}")
    if len(failures) > REASONS:
        console.print(f"  and {len(failures) - REASONS} more, in the report")
    console.print("[bold green]PASS[/]" if made.passed else "[bold red]FAIL[/]")


def _table(made: Report):
    """The judged server's rows; a second one's columns beside them."""
    from rich.markup import escape
    from rich.table import Table

    from pitstop.verify.report import labels, limit_rows

    names = labels(made.outcomes)
    servers = list(dict.fromkeys(names))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("Check", no_wrap=True)
    for head in ("Limit", *map(escape, servers)):
        table.add_column(head, overflow="fold")
    for tier in dict.fromkeys(outcome.tier for outcome in made.outcomes):
        runs = {name: outcome for outcome, name in reversed(list(zip(made.outcomes, names, strict=True))) if outcome.tier == tier}
        ran = [name for name in servers if name in runs]
        for row in limit_rows([runs[name] for name in ran]):
            cells = dict(zip(ran, row.cells, strict=True))
            shown = [
                f"[{COLOURS[cell.state]}]{MARKS[cell.state]}[/] {escape(cell.measured)}" if (cell := cells.get(name)) else "[dim]not run[/]"
                for name in servers
            ]
            table.add_row(f"{tier}.{escape(row.name)}", escape(row.limit), *shown)
    return table
