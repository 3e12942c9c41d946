"""What a worker process writes to standard error: lines of text to read, or of JSON."""

import logging
import os
import sys
from datetime import UTC, datetime

import msgspec

STYLE = "HOLDFAST_LOG_STYLE"


class TextLines(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """On one line, whatever a name holds: only a traceback takes more."""
        message = record.getMessage()
        if record.name == "holdfast.job":
            about = getattr(record, "holdfast", {})
            message = f"{about.get('task')} {about.get('job')}: {message}"
        if not message.isprintable():
            message = message.encode("unicode_escape").decode()
        record.msg, record.args = message, None
        return super().format(record)


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= getattr(record, "holdfast", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=repr).decode()


def write_logs_to_stderr(style: str) -> None:
    """text, json, or quiet: then warnings and errors only. Processes of the pool do the same."""
    os.environ[STYLE] = style
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if style == "json" else TextLines())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("holdfast").setLevel(logging.WARNING if style == "quiet" else logging.INFO)
