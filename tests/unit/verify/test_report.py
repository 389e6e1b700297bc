"""The report: one page that loads nothing and shows what a server said as text, a JSON file that reads back, JUnit XML that parses."""

from __future__ import annotations

import itertools
import math
import re
import xml.etree.ElementTree as ET
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from outcomes import HOSTILE_OUTCOME, HUGE, OURS, THEIRS, check, every_kind, outcome, plot, report

from pitstop.errors import ConfigError
from pitstop.verify.outcome import Outcome, Report
from pitstop.verify.report import assemble, join, read, write
from pitstop.verify.report.page import render
from pitstop.verify.report.thin import POINTS, keep
from pitstop.verify.report.values import show

REPORTS = {
    "nothing": report(),
    "no checks": report(outcome(checks=[])),
    "one of each tier": report(*(outcome(tier) for tier in ("functional", "load", "soak", "quality"))),
    "every kind": report(every_kind()),
    "two targets": report(every_kind(), every_kind(THEIRS), outcome("soak", THEIRS)),
    "many checks": report(outcome("functional", checks=[check(f"functional.{i}", i % 3 > 0, f"failed: {i}") for i in range(130)])),
    "huge": report(HUGE),
    "hostile": report(HOSTILE_OUTCOME, every_kind()),
    "a bare target": report(outcome(target={"url": "x"}), outcome(target={})),
}
VOID = {"meta", "link", "img", "br", "hr", "input"}
OPTIONAL = {"html", "head", "body", "p", "li", "dt", "dd", "tr", "td", "th", "thead", "tbody"}
"""Elements whose end HTML lets one leave out."""


class Page(HTMLParser):
    """Checks that what must be closed is closed in order, and keeps what the tests ask for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert [tag for tag in self.open if tag not in OPTIONAL] == []

    def handle_starttag(self, tag: str, attributes: list) -> None:
        assert len({name for name, _ in attributes}) == len(attributes), f"an attribute twice: {self.get_starttag_text()}"
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open[-1] != tag:
            assert self.open[-1] in OPTIONAL, f"</{tag}> closes <{self.open[-1]}>"
            self.open.pop()
        assert self.open, f"</{tag}> closes nothing"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("style", "script"):
            self.text += data


@cache
def rendered(name: str) -> str:
    """Of one of REPORTS; drawing the plots takes seconds."""
    return render(REPORTS[name])


@pytest.mark.parametrize("name", REPORTS)
def test_the_page_is_whole_and_loads_nothing(name: str) -> None:
    text = rendered(name)
    page = Page(text)
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "link", "iframe", "object", "embed", "img", "image", "base", "form"}
    for tag, attributes in page.tags:
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in ("src", "srcset", "href", "action", "data", "poster", "xlink:href"):
                assert re.fullmatch(r"#[\w.-]+", value), f"<{tag} {name}={value}>"
            if tag != "meta":
                assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", value or "")), value
    [style] = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert "url(" not in style
    assert "@import" not in style
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(set(ids)) == len(ids)
    targets = set(re.findall(r'href="#([\w.-]+)"|url\(#([\w.-]+)\)', text))
    assert {one or other for one, other in targets} <= set(ids)
    assert "#0000" not in text.partition("</style>")[2], "a stand-in colour is left"
    assert re.search(r"\bnan\b|\bNone\b", page.text) is None


def test_what_a_server_says_is_shown_as_text() -> None:
    text = render(report(HOSTILE_OUTCOME))
    assert "<script" not in text
    assert text.count("</style>") == 1
    page = Page(text)
    assert page.text.count("<script>alert('x')</script>") >= 8
    assert "$\\frac{1}{0}$" in page.text


def test_the_verdict_comes_first_with_its_reasons() -> None:
    failing = outcome(checks=[check(passed=False, reason="812 ms at p95, 700 allowed", value=812.0, limit=700.0), check("load.b")])
    text = Page(render(report(outcome("functional"), failing))).text
    assert text.index("FAIL") < text.index("fails 1 of 3 checks") < text.index("812 ms at p95, 700 allowed") < text.index("700 ms")
    text = Page(render(report(outcome("functional"), outcome()))).text
    assert "PASS" in text
    assert "holds all 2 checks" in text
    assert "FAIL" not in text
    text = Page(render(report(outcome(checks=[])))).text
    assert "FAIL" in text
    assert "nothing measured is no pass" in text


def test_many_failures_do_not_push_the_table_away() -> None:
    text = Page(rendered("many checks")).text
    head = text.partition("Measured against the limits")[0]
    assert head.count("functional.") == 8
    assert "and 36 more, below" in head
    assert "86 of 130 hold" in text


def test_failed_cases_are_open_and_others_folded() -> None:
    text = rendered("many checks")
    folded = text[text.index("<details>") : text.rindex("</details>")]
    assert "86 checks that did not fail" in folded
    assert "✗" not in folded
    assert text.partition("<details>")[0].count("✗ failed") >= 44


def test_targets_stand_side_by_side() -> None:
    text = Page(rendered("two targets")).text
    assert "beside it, not judged: llama.cpp (other)" in text
    table = text.partition("Measured against the limits")[2].partition("The machine")[0]
    assert table.index("Pitstop 0.1.0") < table.index("llama.cpp")
    assert table.count("512 ms") == 2
    assert "not run" in table
    charts = re.findall(r"<figcaption>.*?</figcaption>", rendered("two targets"), re.DOTALL)
    overlaid = [caption for caption in charts if "A line" in caption]
    assert len(overlaid) == 1
    assert "Pitstop 0.1.0" in overlaid[0]
    assert "llama.cpp" in overlaid[0]
    assert sum("A scatter" in caption for caption in charts) == 2


def test_two_servers_of_one_name_are_told_apart() -> None:
    twin = OURS | {"url": "http://127.0.0.1:9000"}
    text = Page(render(report(outcome(), outcome(target=twin)))).text
    assert "Pitstop 0.1.0 at 127.0.0.1:9000" in text


@pytest.mark.parametrize(
    ("outcomes", "passed"),
    [
        ([], False),
        ([outcome(checks=[])], False),
        ([outcome(), outcome("soak", checks=[])], False),
        ([outcome()], True),
        ([outcome(checks=[check(), check(passed=False)])], False),
        ([outcome(), outcome(target=THEIRS, checks=[check(passed=False)])], True),
        ([outcome(target=THEIRS, checks=[check(passed=False)]), outcome()], False),
    ],
)
def test_the_verdict_is_the_first_targets(outcomes: list[Outcome], passed: bool) -> None:
    assert report(*outcomes).passed == passed
    assert re.search(r"<title>(\w+)", render(report(*outcomes)))[1] == ("PASS" if passed else "FAIL")


@pytest.mark.parametrize("made", REPORTS.values(), ids=REPORTS)
def test_files_read_back_and_render_the_same(made: Report, tmp_path: Path) -> None:
    made = assemble(["pitstop", "verify"], made.outcomes)
    html, json, junit = write(made, tmp_path / "deep" / "folder")
    again = read(json)
    assert again.passed == made.passed
    assert msgspec.json.encode(again) == msgspec.json.encode(made)
    assert render(again) == html.read_text(encoding="utf-8")
    assert re.search(rb"\bNaN|Infinity", json.read_bytes()) is None
    cases = list(ET.parse(junit).iter("testcase"))
    assert len(cases) == sum(len(outcome.checks) for outcome in made.outcomes)
    failures = list(ET.parse(junit).iter("failure"))
    assert len(failures) == sum(len(outcome.failures) for outcome in made.outcomes)


def test_what_was_not_judged_is_skipped_in_junit_and_marked_on_the_page(tmp_path: Path) -> None:
    made = assemble(["pitstop"], [outcome(checks=[check(), check("load.b", reason="unsupported: no tools")])])
    html, _, junit = write(made, tmp_path)
    [skipped] = ET.parse(junit).iter("skipped")
    assert skipped.get("message") == "unsupported: no tools"
    assert "– not judged" in html.read_text(encoding="utf-8")


def test_nothing_names_the_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    target = OURS | {"url": "http://user:secret@host:8000"}
    made = assemble(
        ["pitstop", "verify", "http://user:secret@host:8000", "--slo", "/home/somebody/slo.yaml"],
        [outcome(target=target, notes=["read /home/somebody/a and /home/somebodyelse"])],
    )
    text = msgspec.json.encode(made).decode()
    assert "secret" not in text
    assert "somebody/" not in text
    assert made.command == ["pitstop verify http://host:8000 --slo ~/slo.yaml"]
    assert "/home/somebodyelse" in made.outcomes[0].notes[0]
    assert set(made.machine) == {"CPU", "cores", "memory", "GPU", "system", "kernel"}
    assert {"pitstop", "python", "locust", "httpx", "http://host:8000"} <= set(made.versions)


def test_reports_join_into_a_comparison() -> None:
    other = msgspec.structs.replace(report(outcome(target=THEIRS, checks=[check(passed=False)])), machine={"CPU": "another"}, command=["b"])
    joined = join([report(outcome()), other])
    assert joined.passed
    assert [made.target for made in joined.outcomes] == [OURS, THEIRS]
    assert joined.machine == {"CPU": "a processor; another", "cores": "2 usable; not known"}
    assert joined.command == ["pitstop verify http://127.0.0.1:8000", "b"]


@pytest.mark.parametrize("content", [outcome(), [outcome(), outcome(target=THEIRS)]])
def test_a_tiers_own_file_is_read_too(content: object, tmp_path: Path) -> None:
    path = tmp_path / "tier.json"
    path.write_bytes(msgspec.json.encode(content))
    assert read(path).outcomes == (content if isinstance(content, list) else [content])
    assert read(path).passed
    assert "how to repeat" not in Page(render(read(path))).text


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff", b'{"command": "x"}', b"<html>"])
def test_a_file_that_is_no_report(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"x\.json is no report\.json"):
        read(path)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file"):
        write(report(outcome()), tmp_path / "file" / "folder")


def test_thinning_keeps_ends_extremes_and_gaps() -> None:
    values = [math.sin(i / 50) for i in range(10_000)]
    values[1234], values[8765] = 50.0, -50.0
    values[4000:4100] = [None] * 100
    kept = keep(values, POINTS)
    assert len(kept) <= POINTS
    assert {0, 1234, 8765, 9999} <= set(kept)
    assert any(values[i] is None for i in kept)
    assert kept == sorted(set(kept))
    step = 9998 / (POINTS // 2 - 1)
    assert all(b - a < 2 * step for a, b in itertools.pairwise(kept)), "a stretch is missing"
    assert keep(values[:POINTS], POINTS) == list(range(POINTS))


def test_a_report_of_a_long_run_stays_small(tmp_path: Path) -> None:
    long = outcome(plots=[plot(kind, ("a", "b", "c"), 50_000) for kind in ("line", "scatter", "cdf")])
    html, json, _ = write(assemble(["pitstop"], [long]), tmp_path)
    assert html.stat().st_size < 250_000
    assert json.stat().st_size < 150_000


@pytest.mark.parametrize(
    ("value", "name", "beside", "shown"),
    [
        (None, "load.e2e_p95_ms", None, "–"),
        (math.nan, "load.e2e_p95_ms", None, "–"),
        (math.inf, "load.e2e_p95_ms", 1.0, "∞"),
        (712.0, "load.e2e_p95_ms", 700.0, "712 ms"),
        (700.0001, "load.e2e_p95_ms", 700.0, "700.0001 ms"),
        (700.0, "load.e2e_p95_ms", 700.0, "700 ms"),
        (0.99949, "load.within_share", 0.9995, "99.949 %"),
        (0.999499999, "load.within_share", 0.9995, "99.9499999 %"),
        (-0.012, "quality.perplexity_rise", 0.01, "−1.2 %"),
        (0.0913, "soak.memory_kb_per_request", 0.25, "0.0913 KiB a request"),
        (1234567.0, "load.requests", None, "1,234,567"),
        (1e300, "load.requests", None, "1e+300"),
        (0.0, "load.errors", 0.0, "0"),
        (2.6e-11, "soak.handles", 1.0, "0 an hour"),
    ],
)
def test_numbers_differ_in_print_when_they_differ(value: float | None, name: str, beside: float | None, shown: str) -> None:
    assert show(value, name, beside) == shown
