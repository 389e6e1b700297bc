"""Fetching one file over HTTP, going on where an earlier transfer stopped. Imports no torch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pitstop.errors import DownloadFailed

if TYPE_CHECKING:
    import httpx


def download(url: str, part: Path, size: int, report: Callable[[int], None], headers: Mapping[str, str] | None = None) -> None:
    """Fetch `url`, of `size` bytes, into `part`, going on where it stopped for as long as each connection brings something.

    report: called with the bytes that are here. Raises DownloadFailed.
    """
    import httpx  # here: it takes a quarter of a second, and a model that is on disk needs none

    part.touch()
    with httpx.Client(follow_redirects=True, timeout=60, headers=dict(headers or {})) as client:
        while (done := part.stat().st_size) < size:
            try:
                _transfer(client, url, part, done, report)
                reason = "the connection was cut"
            except httpx.HTTPStatusError as error:
                raise DownloadFailed(f"{url}: HTTP {error.response.status_code}") from error
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                reason = str(error) or type(error).__name__
            if part.stat().st_size <= done:
                raise DownloadFailed(f"{url}: {reason}; run it again, it goes on where it stopped")
    if done > size:
        part.unlink()
        raise DownloadFailed(f"{url}: more than {size} bytes came, so it is another file; run it again to fetch it anew")


def _transfer(client: httpx.Client, url: str, part: Path, done: int, report: Callable[[int], None]) -> None:
    """One connection: append from byte `done` on, or start over when the server does not honour Range."""
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={done}-"} if done else {})
    with client.stream("GET", url, headers=headers) as response:
        response.raise_for_status()
        resumed = response.status_code == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {done}-")
        with part.open("ab" if resumed else "wb") as file:
            for data in response.iter_raw():
                file.write(data)
                report(file.tell())


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
