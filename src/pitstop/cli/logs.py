"""How log lines look on stderr: for people, or one JSON object each for a collector."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Literal

Format = Literal["text", "json"]


class TextLines(logging.Formatter):
    """Time, level, logger, the id of the request if the line belongs to one, message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        request = getattr(record, "request", "")
        return f"{line} [{request}]" if request else line


class JSONLines(logging.Formatter):
    """time (UTC, ISO 8601), level, logger, message, request, the fields of an access line, exception."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request := getattr(record, "request", ""):
            line["request"] = request
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def configure_logs(level: str, kind: Format) -> None:
    """Log to stderr. At "info" the libraries' own lines are left out."""
    handler = logging.StreamHandler()
    handler.setFormatter(JSONLines() if kind == "json" else TextLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    if level == "info":
        for noisy in ("httpx", "uvicorn", "opentelemetry"):
            logging.getLogger(noisy).setLevel("WARNING")
