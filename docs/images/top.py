"""Make docs/images/top.svg: run the sample app for some minutes and save what `holdfast top` shows.

    .venv/bin/python docs/images/top.py --minutes 6

Two worker processes run the jobs of examples/sample_app.py and a slow import. `holdfast top` runs in a
pseudo-terminal; its last screen becomes the picture. The SVG refers to no font or script on the network.
"""

import argparse
import fcntl
import importlib
import io
import math
import os
import pty
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).parents[2]
PICTURE = Path(__file__).with_suffix(".svg")
COLUMNS, ROWS = 100, 28
LINE = re.compile(r"\x1b\[(\d+);1H\x1b\[0m\x1b\[K([^\x1b]*(?:\x1b\[[\d;]*m[^\x1b]*)*)")
SHOP = """
import time
from holdfast import Context
from sample_app import app, call_api, crash, make_thumbnail, send_mail

@app.task(queue="imports", timeout=300)
def import_orders(ctx: Context, file: str) -> None:
    for part in range(100):
        time.sleep(0.4)
        ctx.progress(part / 100, f"{file}, part {part}")
"""
FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=6, help="how long the workers run first (default: 6)")
    seconds = parser.parse_args().minutes * 60
    with tempfile.TemporaryDirectory(prefix="shop-") as folder:
        os.environ["HOLDFAST_URL"] = f"{folder}/app.db"
        os.environ["PYTHONPATH"] = f"{folder}{os.pathsep}{ROOT / 'examples'}"
        Path(folder, "shop.py").write_text(SHOP, encoding="utf-8")
        command = [sys.executable, "-m", "holdfast", "worker", "shop:app", "--processes", "2", "--grace", "3s"]
        with Path(folder, "worker.log").open("wb") as log:
            workers = subprocess.Popen(command, stderr=log)
        stop = threading.Event()
        producer = threading.Thread(target=produce, args=(Path(folder), seconds, stop))
        producer.start()
        try:
            stop.wait(seconds)
            save(screen_of_top())
        finally:
            stop.set()
            producer.join()
            workers.send_signal(signal.SIGTERM)
            workers.wait()


def produce(folder: Path, seconds: float, stop: threading.Event) -> None:
    """Enqueue jobs at a rate that rises and falls, until told to stop."""
    sys.path[:0] = [str(folder), str(ROOT / "examples")]
    shop = importlib.import_module("shop")
    start = time.monotonic()
    shop.crash.using(delay=seconds / 3).enqueue()
    while not stop.wait(0.25):
        rate = 1.2 + math.sin((time.monotonic() - start) / 40)
        for number in range(round(6 * rate)):
            shop.send_mail.enqueue(f"user{number}@example.org")
        for number in range(round(3 * rate)):
            shop.call_api.enqueue(number)
        if random.random() < 0.5 * rate:
            shop.make_thumbnail.enqueue("cat.jpg")
        if random.random() < 0.02:
            shop.import_orders.enqueue(f"orders-{random.randrange(1, 90):02}.csv")
        if random.random() < 0.1:
            shop.send_mail.using(delay=3600).enqueue("later@example.org")
    shop.app.close()


def screen_of_top() -> list[str]:
    """Run `holdfast top` in a terminal of its own for three seconds, and return the lines of its last screen."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm-256color"
        os.execv(sys.executable, [sys.executable, "-m", "holdfast", "top"])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    output = bytearray()
    quits = time.monotonic() + 3
    while True:
        if quits and time.monotonic() > quits:
            os.write(terminal, b"q")
            quits = 0.0
        try:
            output += os.read(terminal, 65536)
        except OSError:  # the other end is closed
            break
    os.waitpid(pid, 0)
    lines = [""] * ROWS
    for row, text in LINE.findall(output.decode().rpartition("\x1b[2J")[2]):
        lines[int(row) - 1] = text
    return lines


def save(lines: list[str]) -> None:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    for line in lines:
        console.print(Text.from_ansi(line), no_wrap=True, overflow="crop", crop=True)
    svg = console.export_svg(title="holdfast top", theme=MONOKAI)
    svg = FONT.sub("", svg).replace("Fira Code", "ui-monospace, Menlo, Consolas, DejaVu Sans Mono")
    PICTURE.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
