"""`python -m holdfast`."""

from .cli import main

main(prog_name="holdfast")
