"""Checkpoints when it is told to, and lets itself be paused in the middle (by wal_reset_shim.c, preloaded).

usage: checkpointer.py DATABASE LOG guarded|bare
"""

import ctypes
import os
import sys

from holdfast import Holdfast


def main(database: str, log: str, kind: str) -> None:
    app = Holdfast(database, busy_timeout=60)
    worker = app.store.database.engine().writer._checkpointer._checkpoint_connection  # type: ignore[attr-defined]
    worker.execute(f"PRAGMA mmap_size = {1 << 28}")  # only so that there is a munmap to stop in
    worker.execute("SELECT count(*) FROM holdfast_jobs").fetchall()
    print("ready", flush=True)
    sys.stdin.readline()
    ctypes.CDLL(os.environ["LD_PRELOAD"]).stop_in_next_munmap_of(os.fsencode(os.path.realpath(database)))
    if kind == "guarded":
        app.store.file.checkpoint()
    else:
        worker.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    print("checkpointed", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main(*sys.argv[1:])
