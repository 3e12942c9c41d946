"""The command `holdfast` as `python -m holdfast` runs it, but nothing in it depends on how fast the machine is."""

import os
import sys
from pathlib import Path

sys.path[0] = os.getcwd()  # as with `python -m`
sys.path.append(str(Path(__file__).parents[1]))

import support.any_speed  # noqa: E402, F401

if __name__ == "__main__":
    from holdfast.cli import main

    main(prog_name="holdfast")
