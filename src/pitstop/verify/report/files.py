"""A report's files: written, read again, and several joined into one comparison."""

from __future__ import annotations

import contextlib
import re
import shlex
from pathlib import Path

import msgspec

from pitstop.errors import ConfigError
from pitstop.verify.outcome import Outcome, Report
from pitstop.verify.report import junit, page
from pitstop.verify.report.machine import machine, versions
from pitstop.verify.report.thin import thin

HTML, JSON, JUNIT = "report.html", "report.json", "junit.xml"


def assemble(command: list[str], outcomes: list[Outcome]) -> Report:
    """The report of a run by this command's words, on this machine: long series thinned, nothing in it that names its owner."""
    servers = {outcome.target.get("url", ""): outcome.target.get("server", "unknown") for outcome in outcomes}
    return _anonymous(
        Report(
            command=[shlex.join(command)],
            machine=machine(),
            versions=versions() | servers,
            outcomes=[thin(outcome) for outcome in outcomes],
        )
    )


def _anonymous(report: Report) -> Report:
    """Without passwords in URLs and without the home directory's path, wherever they stand."""
    text = re.sub(r"(https?://)[^/@\s\"]+@", r"\1", msgspec.json.encode(report).decode())
    home = str(Path.home())
    if home != "/":
        text = re.sub(re.escape(home) + r"(?=[/\s\"'\\,;:)]|$)", "~", text)
    return msgspec.json.decode(text, type=Report)


def read(path: Path) -> Report:
    """A report, or a tier's outcome or outcomes as `pitstop verify TIER --json` writes them. Raises ConfigError when it is neither."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    try:
        return msgspec.json.decode(content, type=Report)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = error
    for kind in (Outcome, list[Outcome]):
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            found = msgspec.json.decode(content, type=kind)
            outcomes = found if isinstance(found, list) else [found]
            return Report(command=[], machine={}, versions={}, outcomes=[thin(outcome) for outcome in outcomes])
    raise ConfigError(f"{path} is no report.json of `pitstop verify`: {reason}")


def join(reports: list[Report]) -> Report:
    """All outcomes in the order given, so that the first report's first target is the judged one."""
    facts: dict[str, dict[str, str]] = {"machine": {}, "versions": {}}
    for kind, together in facts.items():
        for name in dict.fromkeys(name for report in reports for name in getattr(report, kind)):
            values = dict.fromkeys(getattr(report, kind).get(name, "not known") for report in reports)
            together[name] = "; ".join(values)
    commands = list(dict.fromkeys(line for report in reports for line in report.command))
    return Report(command=commands, **facts, outcomes=[outcome for report in reports for outcome in report.outcomes])


def write(report: Report, folder: Path) -> list[Path]:
    """The three files, made in `folder`. Raises ConfigError when they cannot be."""
    contents = {
        HTML: page.render(report).encode(),
        JSON: msgspec.json.encode(report) + b"\n",
        JUNIT: junit.render(report),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (folder / name).write_bytes(content)
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}") from None
    return [folder / name for name in contents]
