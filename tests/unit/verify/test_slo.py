"""Limits: the example is the defaults, and nonsense ends in one line that names file, line and field."""

from __future__ import annotations

from pathlib import Path

import pytest

from pitstop.errors import ConfigError
from pitstop.verify.slo import MAX_BYTES, SLO, LoadLimits, SoakLimits, read_slo

EXAMPLE = Path(__file__).parents[3] / "docs" / "slo.yaml"


def test_the_example_is_the_defaults_and_names_every_limit() -> None:
    assert read_slo(EXAMPLE) == read_slo(None) == SLO()
    text = EXAMPLE.read_text(encoding="utf-8")
    for tier in SLO.__struct_fields__:
        section = text.partition(f"\n{tier}:")[2].partition("\n\n")[0]
        assert section
        for limit in getattr(SLO(), tier).__struct_fields__:
            assert f"  {limit}: " in section


def test_what_is_given_counts_and_the_rest_stays(tmp_path: Path) -> None:
    path = tmp_path / "slo.yaml"
    path.write_text("load:\n  e2e_p95_ms: 250\n  within_share: null\nsoak: {restarts: 2}\n")
    assert read_slo(path) == SLO(load=LoadLimits(e2e_p95_ms=250, within_share=None), soak=SoakLimits(restarts=2))


NONSENSE = {
    "a tier that is none": ("lod:\n  e2e_p95_ms: 1", "1: lod: there is no such limit"),
    "a limit that is none": ("load:\n\n  p95: 1", "3: load.p95: there is no such limit"),
    "NaN": ("load:\n  e2e_p95_ms: .nan", "2: load.e2e_p95_ms: must be a number of at least 0, got nan"),
    "infinite": ("load:\n  e2e_p95_ms: .inf", "2: load.e2e_p95_ms: must be a number"),
    "negative": ("soak:\n  # no\n  restarts: -1", "3: soak.restarts: must be a number of at least 0"),
    "a share over 1": ("load:\n  within_share: 99.95", "2: load.within_share: is a share: it lies between 0 and 1"),
    "text": ("load:\n  e2e_p95_ms: fast", "2: load.e2e_p95_ms: Expected `float | null`, got `str`"),
    "bool": ("load:\n  e2e_p95_ms: true", "2: load.e2e_p95_ms: Expected `float | null`, got `bool`"),
    "half a case": ("functional:\n  failures: 0.5", "2: functional.failures: Expected `int | null`"),
    "a list for a limit": ("load:\n  e2e_p95_ms: [700]", "2: load.e2e_p95_ms: Expected `float | null`, got `array`"),
    "too large for a float": (f"load:\n  e2e_p95_ms: 1{'0' * 400}", "2: load.e2e_p95_ms: "),
    "a date that is none": ("load:\n  e2e_p95_ms: 2020-13-45", "2: "),
    "a Python object": ("load:\n  e2e_p95_ms: !!python/name:os.system x", "2: "),
    "a list": ("- load", "1: the file must hold names and values, like load:"),
    "a number": ("3", "1: the file must hold names and values"),
    "a tier without limits": ("soak: {}\nload:", "2: load must hold names and values, like e2e_p95_ms: 700"),
    "a list of limits": ("load:\n  - e2e_p95_ms: 700", "2: load must hold names and values"),
    "a limit twice": ("load:\n  within_ms: 1\n  within_ms: 2", "3: load has a name twice"),
    "a name that is none": ("? [load]\n: 1", "1: the file has a name twice, or one that is none"),
    "aliases": ("load: &a {e2e_p95_ms: 1}\nsoak: *a", "2: aliases (*a) are not taken"),
    "two documents": ("---\nload: {}\n---\nload: {}", "3: "),
    "unclosed": ("load: {e2e_p95_ms: 700", "1: "),
    "deep": ("[" * 5000, "1: nested too deeply"),
    "a name of two lines": ('"lo\\nad": {}', "1: "),
}


@pytest.mark.parametrize(("text", "says"), NONSENSE.values(), ids=NONSENSE)
def test_nonsense_names_file_line_and_field(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "limits.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        read_slo(path)
    assert str(raised.value).startswith(f"{path}:{says}")
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "holds no limits"),
        (b"# load:\n", "holds no limits"),
        (b"\xff\xfe\x00", "not YAML"),
        (b"\x7fELF\x02\x01\x01\x00", "not YAML"),
        (b"\xe4\xe4", "not YAML"),
        (b"[" * MAX_BYTES, "nested too deeply"),
        (b"load: {}\n" + b"#" * MAX_BYTES, "over 64 KiB"),
    ],
)
def test_files_that_are_no_limits(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "limits.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as raised:
        read_slo(path)
    assert str(raised.value).startswith(f"{path}:")
    assert says in str(raised.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml: No such file"):
        read_slo(tmp_path / "absent.yaml")
    with pytest.raises(ConfigError, match="Is a directory"):
        read_slo(tmp_path)
