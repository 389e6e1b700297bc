"""`pitstop verify functional`: every case against a server, and beside another one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pitstop.cli.verify import URL, ModelName, address, key

if TYPE_CHECKING:
    from rich.table import Table

    from pitstop.verify.functional import Result
    from pitstop.verify.outcome import Outcome
    from pitstop.verify.slo import FunctionalLimits
    from pitstop.verify.target import Target


def _list(wanted: bool) -> None:
    if wanted:
        from pitstop.verify.functional import load_cases

        for case in load_cases():
            print(f"{case.id}: {case.what}")
        raise typer.Exit


def functional(
    url: URL,
    model: ModelName = "",
    only: Annotated[str | None, typer.Option(metavar="PATTERN", help="Cases whose id or theme matches, as in a shell: 'stop-*'.")] = None,
    against: Annotated[str, typer.Option(metavar="URL", help="A second server, shown beside the first and not judged.")] = "",
    slo: Annotated[Path | None, typer.Option(metavar="FILE", help="The limits, as docs/slo.yaml.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the cases' order.")] = 0,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML here.")] = None,
    json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the outcomes here, the judged one first.")] = None,
    list_only: Annotated[bool, typer.Option("--list", callback=_list, is_eager=True, help="List the cases and exit.")] = False,
) -> None:
    """Ask a server what docs/verify-cases.md describes, case by case, and compare its answers with what a correct server gives.

    Exits 0 when no more cases fail than the limits allow, else 1.
    """
    import msgspec
    from rich.console import Console

    from pitstop.verify.functional.junit import write_junit
    from pitstop.verify.slo import read_slo
    from pitstop.verify.target import connect

    limits = read_slo(slo).functional
    targets = [connect(url, model, key()), *([connect(address(against), "", key())] if against else [])]
    outcomes = [_run(target, limits, only, seed) for target in targets]
    if json is not None:
        json.write_bytes(msgspec.json.format(msgspec.json.encode(outcomes)))
    if junit is not None:
        write_junit(outcomes[0], junit)
    print_outcomes(outcomes, Console(highlight=False))
    raise typer.Exit(0 if outcomes[0].passed else 1)


def _run(target: Target, limits: FunctionalLimits, only: str | None, seed: int) -> Outcome:
    from tqdm import tqdm

    from pitstop.verify.functional import run

    with tqdm(disable=None, leave=False, unit="case", desc=target.facts["server"]) as bar:

        def show(done: int, total: int, result: Result) -> None:
            bar.total = total
            bar.set_postfix_str(result.id, refresh=False)
            bar.update()

        return run(target, limits, only=only, seed=seed, progress=show)


def print_outcomes(outcomes: list[Outcome], console) -> None:
    """A table by theme with a column for each server, the cases that did not pass anywhere, and the first server's verdict."""
    from rich.table import Table

    from pitstop.verify.functional import results_of

    names = [f"{outcome.target['server']} ({outcome.target['url']})" for outcome in outcomes]
    found = [{result.id: result for result in results_of(outcome)} for outcome in outcomes]
    themes = Table("Theme", *names, title="Passed / failed / unsupported / skipped", title_justify="left")
    groups: dict[str, list[str]] = {}
    for result in found[0].values():
        groups.setdefault(result.theme, []).append(result.id)
    for theme, ids in groups.items():
        themes.add_row(theme, *(_counts([results[case] for case in ids]) for results in found))
    themes.add_section()
    themes.add_row("All", *(_counts(list(results.values())) for results in found))
    console.print(themes)
    wrong = [case for case in found[0] if any(results[case].state != "passed" for results in found)]
    if wrong:
        console.print(_reasons(wrong, names, found))
    failed = outcomes[0].figures["failed"]
    judged = outcomes[0].passed
    console.print(f"{'PASS' if judged else 'FAIL'}: {failed} of {len(found[0])} cases failed", style="bold green" if judged else "bold red")


def _counts(results: list[Result]) -> str:
    from pitstop.verify.functional.run import STATES

    states = [result.state for result in results]
    return " / ".join(str(states.count(state)) for state in STATES)


def _reasons(ids: list[str], names: list[str], found: list[dict[str, Result]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table("Case", *names, title="Cases that did not pass", title_justify="left", show_lines=True)
    for case in ids:
        cells = (f"{results[case].state}: {results[case].reason}".removesuffix(": ") for results in found)
        table.add_row(case, *(Text(cell[:300], overflow="fold") for cell in cells))
    return table
