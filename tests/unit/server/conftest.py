"""One server with a fake worker for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("servers", "cases.text", "cases.parameters", "cases.requests", "cases.structured")

from servers import Server, fake_server  # noqa: E402


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with fake_server("--admin") as server:
        yield server
