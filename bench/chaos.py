"""Does the server keep its promises when things go wrong? `make chaos`.

    python bench/chaos.py [--quick] [--only NAME,…] [--model NAME_OR_PATH] [--list]

Each scenario starts `pitstop serve` on the model, harms it or sends it clients without manners, and measures what others noticed. The quick
version takes some minutes, the full one about an hour. Prints a table, and one JSON line of the figures at last; exits with 1 when a
promise was broken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable

import chaos_clients
import chaos_load
import chaos_upgrade
import chaos_workers
from chaos_server import Kit, Late
from others import Others
from rich.console import Console
from rich.table import Table

from pitstop.models.weights.fetch import pull

Scenario = Callable[[Kit], Awaitable[None]]

SCENARIOS: dict[str, Scenario] = {
    "kill": chaos_workers.kill,
    "stop": chaos_workers.stop,
    "canary": chaos_workers.canary,
    "poison": chaos_workers.poison,
    "saturation": chaos_workers.saturation,
    "overload": chaos_load.overload,
    "aborts": chaos_load.aborts,
    "drain": chaos_load.drain,
    "manners": chaos_clients.manners,
    "upgrade": chaos_upgrade.upgrade,
}


def play(name: str, kit: Kit) -> Kit:
    """One scenario. A broken one breaks its promise, not the run."""
    begin = time.monotonic()
    try:
        asyncio.run(SCENARIOS[name](kit))
    except Late as error:
        kit.promise("comes to its end", False, str(error))
    kit.figures["seconds"] = round(time.monotonic() - begin, 1)
    return kit


def show(console: Console, kits: dict[str, Kit]) -> None:
    table = Table("scenario", "promise", "measured", "kept", show_lines=False)
    for name, kit in kits.items():
        for place, check in enumerate(kit.checks):
            kept = "[green]yes" if check.passed else "[red]NO"
            table.add_row(name if place == 0 else "", check.name, check.reason, kept, end_section=place == len(kit.checks) - 1)
    console.print(table)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--only", default="", help="scenarios, separated by commas")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, shorter loads")
    parser.add_argument("--list", action="store_true", help="say what there is, and stop")
    options = parser.parse_args()
    options.only = options.only.split(",") if options.only else list(SCENARIOS)
    if unknown := set(options.only) - set(SCENARIOS):
        parser.error(f"--only: {', '.join(sorted(unknown))}; choose among {', '.join(SCENARIOS)}")
    return options


def main() -> None:
    options = arguments()
    if options.list:
        for name, scenario in SCENARIOS.items():
            print(f"{name:12} {(scenario.__doc__ or '').splitlines()[0]}")
        return
    console = Console()
    kits = {}
    model = str(pull(options.model))
    with tempfile.TemporaryDirectory() as home, Others() as others:
        for name in options.only:
            console.print(f"{name} …", style="dim")
            kits[name] = play(name, Kit(model, home, options.quick))
    show(console, kits)
    print(others)
    kept = all(check.passed for kit in kits.values() for check in kit.checks)
    figures = {name: kit.figures | {"kept": all(check.passed for check in kit.checks)} for name, kit in kits.items()}
    print(json.dumps({"quick": options.quick, "kept": kept, "scenarios": figures, "others": round(others.share, 3)}))
    sys.exit(not kept)


if __name__ == "__main__":
    main()
