"""The log of `holdfast worker` on standard error, as text or as JSON lines."""

import logging
import os
import sys
from datetime import UTC, datetime

import msgspec

LOG_STYLE = "HOLDFAST_LOG_STYLE"  # the environment variable that pool processes read


class TextLines(logging.Formatter):
    """Formats records as lines of text."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """Format a record on one line, with control characters escaped. Only a traceback has more lines."""
        message = record.getMessage()
        if record.name == "holdfast.job":
            fields = getattr(record, "holdfast", {})
            message = f"{fields.get('task')} {fields.get('job')}: {message}"
        if not message.isprintable():
            message = message.encode("unicode_escape").decode()
        record.msg, record.args = message, None
        return super().format(record)


class JsonLines(logging.Formatter):
    """Formats records as JSON objects, one per line."""

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
    """Configure logging. style: "text", "json", or "quiet" for warnings and errors only.

    Pool processes inherit the style.
    """
    os.environ[LOG_STYLE] = style
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if style == "json" else TextLines())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("holdfast").setLevel(logging.WARNING if style == "quiet" else logging.INFO)
