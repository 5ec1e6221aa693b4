"""Log lines for the journal: one plain line per event on stderr, with its facts as ``name=value``."""

import json
import logging
import os
import sys
import traceback
from collections.abc import Mapping
from typing import override

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
"""What STANDFAST_LOG may be."""
_PRIORITY = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}


class LineFormatter(logging.Formatter):
    """Exactly one line per record; systemd's ``<priority>`` prefix only when the journal reads it."""

    def __init__(self, *, prefix: bool) -> None:
        super().__init__()
        self._prefix = prefix

    @override
    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += " " + facts(error=_where(record.exc_info[1]))
        line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
        return f"<{_PRIORITY.get(record.levelno, 6)}>{line}" if self._prefix else line


def facts(**named: object) -> str:
    """``name=value`` pairs; a value that is not one word is quoted."""
    return " ".join(f"{name}={_word(value)}" for name, value in named.items() if value is not None)


def to_stderr(environment: Mapping[str, str] = os.environ) -> None:
    """Send the log to stderr, at the level that STANDFAST_LOG names (``info`` unless set)."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(prefix="JOURNAL_STREAM" in environment))
    root = logging.getLogger("standfast")
    root.handlers[:] = [handler]
    root.propagate = False
    root.setLevel(LEVELS.get(environment.get("STANDFAST_LOG", "info"), logging.INFO))


def _word(value: object) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return text if text and " " not in text and '"' not in text else json.dumps(text, ensure_ascii=False)


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{place}"
