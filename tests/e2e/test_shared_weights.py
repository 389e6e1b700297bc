"""Two workers of one model: their packed weights are in memory once."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from servers import children, model_server

pytestmark = [pytest.mark.model, pytest.mark.skipif(sys.platform != "linux", reason="no /proc")]


def mapped(pid: int) -> dict[str, int]:
    """KiB of the process's mapping of packed weights, by the names of /proc/PID/smaps; empty where it has none."""
    blocks = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path(f"/proc/{pid}/smaps").read_text(), flags=re.M)
    [*found] = [block for block in blocks if block.partition("\n")[0].endswith(".packed")]
    assert len(found) <= 1
    return {name: int(size) for name, size in re.findall(r"^(\w+): +(\d+) kB", "".join(found), flags=re.M)}


@pytest.mark.parametrize("share", [True, False])
def test_weights_of_two_workers(model_path: Path, share: bool):
    options = () if share else ("--no-share-weights",)
    with model_server(model_path, "--context", "1024", "--workers", "2", "--kv-memory", "256MiB", *options) as server:
        assert server.complete("hello").status_code == 200
        found = [mapped(pid) for pid in children(server.process.pid)]
        assert len(found) == 2
        for sizes in found:
            if not share:
                assert sizes == {}
                continue
            assert sizes["Rss"] > 0.9 * sizes["Size"]
            assert sizes["Shared_Clean"] + sizes["Shared_Dirty"] == sizes["Rss"]
            assert sizes["Private_Clean"] + sizes["Private_Dirty"] + sizes["Anonymous"] == 0
