"""Models of a hub, by ids like "org/name" and "org/name/file.gguf": what is fetched of them, and where it lies. Imports no torch.

The hub is the one that the huggingface_hub library is set up for (HF_ENDPOINT, HF_TOKEN). The library asks it what a model holds; the files
are fetched here, because the library starts a broken one anew in a later run.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pitstop.errors import DownloadFailed
from pitstop.models.weights.download import download, sha256
from pitstop.models.weights.files import CHECKPOINT, INDEX, SINGLE, TENSOR_PARALLEL, TOKENIZERS, read_json

Progress = Callable[[int, int], None]
"""Called with the bytes that are here and the bytes in all."""

_PART = r"[A-Za-z0-9_][\w.-]*"
_ID = re.compile(rf"(?P<repo>{_PART}/{_PART})(?P<file>(/{_PART})*/{_PART}\.gguf)?", re.ASCII)
_CONFIG = "config.json"
_SMALL = (_CONFIG, "generation_config.json", "tokenizer_config.json", "chat_template.jinja", INDEX)
_LEAF = re.compile(rf"({CHECKPOINT}/)?tensor\d{{5}}_\d{{3}}")
"""Of a checkpoint in Grok-1's layout."""
_COMPLETE = ".complete"
"""A file of a folder whose last file has come."""
_REVISION = ".revision"
"""The file that says which revision the files are of."""
_INSTEAD = "or pass a folder with config.json and *.safetensors, or a .gguf file"


def is_id(name: str) -> bool:
    """Whether `name` has the form of an id. A relative path may have it, too: one that is there goes first."""
    match = _ID.fullmatch(name)
    return match is not None and (match["file"] is not None or not match["repo"].endswith(".gguf"))


def place(id: str, models: Path) -> Path:
    """The folder or the GGUF file that the model of `id` is or will be, under the folder `models`."""
    return models / id


def is_here(path: Path) -> bool:
    """Whether all of the model at `path` has come: a file gets its name last, a folder its mark."""
    return path.is_file() or (path / _COMPLETE).is_file()


def pull(id: str, models: Path, progress: Progress) -> None:
    """Fetch what we read of the model: a GGUF file, or config, tokenizer and the weights in one of the layouts of a folder.

    Raises DownloadFailed, one line that says what to do: no hub, no such model, none in a form that we read, no space, a broken transfer.
    """
    match = _ID.fullmatch(id)
    repo, file = match["repo"], (match["file"] or "").removeprefix("/")
    transfer = _Transfer(id, repo, models / repo, progress)
    if file:
        return transfer.fetch([file])
    wanted = _wanted(id, transfer.sizes)
    transfer.fetch(wanted)
    if INDEX in wanted:
        transfer.fetch(_shards(models / repo, transfer.sizes))
    return transfer.finish()


class _Transfer:
    """Files of one revision into one folder. Asks the hub at once."""

    def __init__(self, id: str, repo: str, folder: Path, progress: Progress) -> None:
        with _explained(id, repo):
            from huggingface_hub import HfApi
            from huggingface_hub.utils import build_hf_headers

            info = HfApi().model_info(repo, files_metadata=True, timeout=10)
            self._headers = build_hf_headers()
        files = {sibling.rfilename: sibling for sibling in info.siblings or []}
        self.sizes: dict[str, int] = {name: file.size for name, file in files.items() if file.size is not None}
        self._digests = {name: file.lfs.sha256 for name, file in files.items() if file.lfs}
        self._id, self._repo, self._revision, self._folder, self._progress = id, repo, info.sha, folder, progress
        self._done = self._total = 0
        folder.mkdir(parents=True, exist_ok=True)
        mark = folder / _REVISION
        self._same = mark.exists() and mark.read_text() == self._revision
        mark.write_text(self._revision)

    def fetch(self, names: list[str]) -> None:
        """Each file that is not here yet in this revision; one gets its name when all of it is here and right."""
        for name in names:
            if name not in self.sizes:
                raise DownloadFailed(
                    f"{self._id}: {self._repo} holds no {name}; it holds {_ggufs(self._repo, self.sizes) or 'no GGUF file'}"
                )
        self._total += sum(self.sizes[name] for name in names)
        missing = [name for name in names if not (self._same and (self._folder / name).exists())]
        self._done += sum(self.sizes[name] for name in names) - sum(self.sizes[name] for name in missing)
        free, needed = shutil.disk_usage(self._folder).free, sum(self.sizes[name] for name in missing)
        if free < needed:
            raise DownloadFailed(f"{self._id} needs {needed >> 20} MiB more, {self._folder} has {free >> 20} MiB free")
        for name in missing:
            self._fetch(name)

    def _fetch(self, name: str) -> None:
        from huggingface_hub import hf_hub_url

        path = self._folder / name
        part = path.with_name(f"{path.name}.{self._revision[:12]}.part")
        part.parent.mkdir(parents=True, exist_ok=True)
        url = hf_hub_url(self._repo, name, revision=self._revision)
        download(url, part, self.sizes[name], lambda here: self._progress(self._done + here, self._total), self._headers)
        if name in self._digests and (found := sha256(part)) != self._digests[name]:
            part.unlink()
            raise DownloadFailed(f"{url}: the bytes are wrong (sha256 {found}, not {self._digests[name]}); run it again to fetch it anew")
        part.replace(path)
        self._done += self.sizes[name]

    def finish(self) -> None:
        (self._folder / _COMPLETE).touch()


def _wanted(id: str, sizes: Mapping[str, int]) -> list[str]:
    """The files of a folder that we read, in the order in which they are fetched; without shards, which the index names."""
    small = [*[name for name in TOKENIZERS if name in sizes][:1], *(name for name in _SMALL if name in sizes)]
    if leaves := sorted(filter(_LEAF.fullmatch, sizes)):
        return small + leaves
    if _CONFIG in sizes and (parts := sorted(filter(TENSOR_PARALLEL.fullmatch, sizes))):
        return [name for name in small if name != INDEX] + parts
    if _CONFIG in sizes and (INDEX in sizes or SINGLE in sizes):
        return small + ([] if INDEX in sizes else [SINGLE])
    if ggufs := _ggufs(id, sizes):
        raise DownloadFailed(f"{id} holds GGUF files; pull one of them: {ggufs}")
    raise DownloadFailed(f"{id} holds no {_CONFIG} with {SINGLE} or {INDEX}, and no GGUF file; choose another model")


def _ggufs(repo: str, sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{repo}/{name}" for name in sorted(sizes) if name.endswith(".gguf"))


def _shards(folder: Path, sizes: Mapping[str, int]) -> list[str]:
    placed = read_json(folder / INDEX).get("weight_map")
    shards = sorted(set(placed.values())) if isinstance(placed, dict) else []
    if not shards or not sizes.keys() >= set(shards):
        raise DownloadFailed(f"{folder / INDEX}: names shards that the model does not hold")
    return shards


@contextmanager
def _explained(id: str, repo: str) -> Iterator[None]:
    """The library's errors as one line each."""
    try:
        from huggingface_hub import constants, errors
        from huggingface_hub.utils import logging
    except ImportError as error:
        raise DownloadFailed(f"{id}: fetching from a hub needs huggingface_hub ({error}); install it, {_INSTEAD}") from error
    logging.set_verbosity_error()  # what went wrong is said once, below
    hub = constants.ENDPOINT
    try:
        yield
    except errors.GatedRepoError as error:
        raise DownloadFailed(f"{id}: its terms must be accepted at {hub}/{repo} first; then set HF_TOKEN to a token of yours") from error
    except errors.RepositoryNotFoundError as error:
        raise DownloadFailed(f"{id}: no such file or folder here, and no such model at {hub}, or a private one (HF_TOKEN)") from error
    except errors.HfHubHTTPError as error:
        raise DownloadFailed(f"{id}: {hub} answered with HTTP {error.response.status_code}; try again later, {_INSTEAD}") from error
    except (errors.HTTPError, errors.EntryNotFoundError, OSError, ValueError) as error:
        reason = " ".join(str(error.__cause__ or error).split()) or type(error).__name__
        raise DownloadFailed(
            f"{id}: no such file or folder here, and the hub at {hub} cannot be reached ({reason}); "
            f"set HF_ENDPOINT to one that can, {_INSTEAD}"
        ) from error
