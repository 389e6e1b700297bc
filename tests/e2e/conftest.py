"""One server on the default model for all tests of this folder that ask for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("servers", "cases.text", "cases.parameters", "cases.requests", "cases.structured")

from servers import Server, model_server  # noqa: E402


@pytest.fixture(scope="session")
def server(model_path: Path) -> Iterator[Server]:
    with model_server(model_path, "--context", "1024", "--max-waiting", "64") as server:
        yield server
