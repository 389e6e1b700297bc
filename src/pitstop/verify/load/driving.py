"""Running the driver process, and reading what it reports."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable

import msgspec

from pitstop.errors import TargetError
from pitstop.verify.load.records import Record, Summary, Work

_START = "import locust; from pitstop.verify.load.driver import main; main()"
_decode = msgspec.json.Decoder(Record | Summary).decode


def drive(work: Work, watch: Callable[[Record], bool] | None = None) -> tuple[list[Record], Summary | None]:
    """Do the work in a process of its own: the records in the order of their jobs, and the driver's summary.

    `watch` sees each record as it ends; True stops the run, which then has no summary. Raises TargetError when the driver fails,
    with its last words.
    """
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen([sys.executable, "-c", _START], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        try:
            process.stdin.write(msgspec.json.encode(work))
            process.stdin.close()
            records, summary, stopped = _read(process, watch)
        finally:
            process.terminate()
            process.wait(10)
            process.stdout.close()
        if summary is None and not stopped:
            errors.seek(0)
            raise TargetError(f"the load driver failed: {errors.read().decode(errors='replace').strip()[-1000:]}")
    return sorted(records, key=lambda record: record.number), summary


def _read(process: subprocess.Popen, watch: Callable[[Record], bool] | None) -> tuple[list[Record], Summary | None, bool]:
    records: list[Record] = []
    for line in process.stdout:
        entry = _decode(line)
        if isinstance(entry, Summary):
            return records, entry, False
        records.append(entry)
        if watch is not None and watch(entry):
            return records, None, True
    return records, None, False
