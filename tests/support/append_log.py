"""A log of what processes do: each appends whole lines, also while others do."""

import os


def append_line(path: str, *words: object) -> None:
    out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(out, (" ".join(map(str, words)) + "\n").encode())
    os.close(out)
