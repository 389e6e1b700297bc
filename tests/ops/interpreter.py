"""Programs that run Triton kernels in Triton's interpreter, which must be chosen before Triton is imported: hence a process of its own.

A program is a module of checks, functions that give {name: number}, and ends in `main`. `python PROGRAM CHECK…` prints a JSON line
{check: {name: number}} for each check. `--plant OLD NEW` first puts NEW in the place of OLD in the source of the kernels.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

Checks = Mapping[str, Callable[[], dict[str, float]]]


def interpret(program: str, *arguments: str) -> dict[str, dict[str, float]]:
    """The answers of `python PROGRAM ARGUMENTS`, which lies beside this file. Half a minute a check is patience, not measure."""
    environment = os.environ | {"PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"}
    script = Path(__file__).with_name(program)
    run = subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, timeout=240, env=environment)
    assert run.returncode == 0, run.stderr[-3000:]
    return {name: answers for line in run.stdout.splitlines() for name, answers in json.loads(line).items()}


def main(checks: Checks, kernels: Mapping[str, ModuleType]) -> None:
    """The body of a program. kernels: files with kernels, by name, and the package that each lies in. Where several have a name, something
    and a dot come before it."""
    import torch

    torch.set_num_threads(1)
    names = sys.argv[1:]
    if names and names[0] == "--plant":
        _plant(*names[1:3], kernels)
        names = names[3:]
    for name in names:
        print(json.dumps({name: checks[name]()}), flush=True)


def _plant(old: str, new: str, kernels: Mapping[str, ModuleType]) -> None:
    """Use kernels that have `new` where ours have `old`."""
    sources = {name: Path(package.__path__[0], f"{name.rpartition('.')[2]}.py").read_text() for name, package in kernels.items()}
    found = [name for name, source in sources.items() if old in source]
    assert len(found) == 1, f"{old!r} is in {found or 'none'} of {', '.join(kernels)}"
    (name,) = found
    assert sources[name].count(old) == 1, f"{old!r} is {sources[name].count(old)} times in {name}"
    module_name = name.rpartition(".")[2]
    file = Path(tempfile.mkdtemp()) / f"{module_name}.py"
    file.write_text(sources[name].replace(old, new))
    full = f"{kernels[name].__name__}.{module_name}"
    spec = importlib.util.spec_from_file_location(full, file)
    sys.modules[full] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    setattr(kernels[name], module_name, module)
