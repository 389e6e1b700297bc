"""The import ladder of DESIGN: a room imports lower rungs only, never sideways except to rung 0. Parsed, so lazy imports count too."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import pitstop

SOURCE = Path(pitstop.__file__).parent
RUNGS = {
    "types": 0, "config": 0, "errors": 0,
    "_native": 1, "ops": 1, "text": 1, "guide": 1, "roofline": 1, "stats": 1,
    "codecs": 2,
    "kv": 3, "models": 3,
    "engine": 4, "knowledge": 4,
    "pool": 5,
    "server": 6,
    "fleet": 7, "verify": 7, "precision": 7, "advise": 7,
    "cli": 8,
}  # fmt: skip
ONLY = {"verify": {"types", "errors", "stats", "roofline"}}
ALSO = {("advise", "verify"), ("ops", "_native")}
TORCH_FREE = ("types", "config", "errors", "text", "guide", "roofline", "stats", "pool", "server", "cli")


def imports(path: Path) -> set[str]:
    """Full names of the modules that a file imports, anywhere in it, TYPE_CHECKING blocks left out."""
    tree = ast.parse(path.read_text())
    checking = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)]
    skipped = {child for node in checking for child in ast.walk(node)}
    found = set()
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import hides its room"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def violations(source: Path) -> list[str]:
    """Every import that the ladder forbids, as "file: room → room"."""
    wrong = []
    for path in sorted(source.rglob("*.py")):
        room = path.relative_to(source).parts[0].removesuffix(".py")
        if room in ("__init__", "__main__"):
            continue
        assert room in RUNGS, f"{path}: room {room} has no rung in DESIGN's table"
        for name in imports(path):
            parts = name.split(".")
            if parts[0] != "pitstop" or len(parts) < 2 or parts[1] not in RUNGS or parts[1] == room:
                continue
            target = parts[1]
            allowed = RUNGS[target] < RUNGS[room] or (room, target) in ALSO
            if RUNGS[room] == 0:
                allowed = RUNGS[target] == 0
            if room in ONLY:
                allowed = target in ONLY[room]
            if not allowed:
                wrong.append(f"{path.relative_to(source)}: {room} → {target}")
    return wrong


def test_imports_go_down_only() -> None:
    assert violations(SOURCE) == []


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("models/planted.py", "from pitstop.kv.cache import KVCache"),
        ("models/planted.py", "def f():\n    import pitstop.kv"),
        ("ops/planted.py", "from pitstop import codecs"),
        ("types.py", "import pitstop.text"),
        ("verify/planted.py", "from pitstop.config import ServerConfig"),
    ],
)
def test_a_planted_import_is_found(tmp_path: Path, file: str, line: str) -> None:
    planted = tmp_path / file
    planted.parent.mkdir(exist_ok=True)
    planted.write_text(line)
    assert len(violations(tmp_path)) == 1


def test_rooms_of_the_front_import_no_torch() -> None:
    wrong = [
        str(path.relative_to(SOURCE))
        for room in TORCH_FREE
        for path in [SOURCE / f"{room}.py", *(SOURCE / room).rglob("*.py")]
        if path.exists() and any(name.split(".")[0] == "torch" for name in imports(path))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "module", ["pitstop", "pitstop.server", "pitstop.pool", "pitstop.cli", "pitstop.engine.scheduler", "pitstop.kv.cache"]
)
def test_importing_the_front_loads_no_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_test_files_have_names_of_their_own() -> None:
    """Test folders are no packages: pytest takes a second file of a name for the first."""
    names = [path.name for path in Path(__file__).parents[1].rglob("test_*.py")]
    assert sorted({name for name in names if names.count(name) > 1}) == []
