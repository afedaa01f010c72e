"""How a process writes its log: a line for people, or an object a line for a collector. Always to standard error."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from secformer.settings import Settings

TEXT = "%(asctime)s %(levelname)s %(message)s"


class JsonLines(logging.Formatter):
    """Time, level and message, with the fields that a line brings along. An exception is named by its type: its text, and the
    lines it passed, may quote what was computed."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info and record.exc_info[0] is not None:
            entry["exception"] = record.exc_info[0].__name__
        return json.dumps({**entry, **getattr(record, "fields", {})}, ensure_ascii=True)


def set_up(settings: Settings) -> None:
    """Once a process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if settings.log_format == "json" else logging.Formatter(TEXT))
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler])
