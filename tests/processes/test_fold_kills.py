"""Kills while the log is folded: the sums are those of a recount, whatever statement was the last."""

import json
import os
import subprocess
import sys
from pathlib import Path

KILLS = int(os.environ.get("FOLD_KILLS", "60"))
SEED = int(os.environ.get("FOLD_SEED", "1"))


def test_a_kill_inside_a_fold_neither_loses_nor_doubles_a_count(tmp_path: Path) -> None:
    program = Path(__file__).with_name("fold_killer.py")
    arguments = [sys.executable, program, tmp_path / "app.db", str(KILLS), str(SEED)]
    env = {**os.environ, "PYTHONPATH": str(program.parent.parent)}
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    found = json.loads(done.stdout)
    assert found["wrong"] == []
    assert found["in_fold"] >= KILLS // 3 and found["elsewhere"] > 0
