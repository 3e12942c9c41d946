"""A model of a disk with a cache: what a recording of fault_shim.c could have left behind at a power cut."""

import os
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SECTOR = 512
WAYS = ("nothing", "sectors", "torn", "late", "one missing", "everything")
"""What of the unflushed writes reaches the disk: none; any sectors; a prefix whose last write is torn; rather the
later ones; all but one; all."""


class Entry(NamedTuple):
    """One call. kind: W(rite), S(ync), F(ailed sync), T(runcate), C(reate), U(nlink), R(ename), mkD(ir), M(ark)."""

    kind: str
    path: str
    number: int
    data: bytes


def read_recording(log: Path) -> Iterator[Entry]:
    data, at, head = log.read_bytes(), 0, struct.Struct("<cIqI")
    while at < len(data):
        kind, length, number, size = head.unpack_from(data, at)
        at += head.size
        yield Entry(kind.decode(), data[at : at + length].decode(), number, data[at + length : at + length + size])
        at += length + size


class _File:
    def __init__(self) -> None:
        self.flushed = bytearray()
        self.pending: list[Entry] = []


def _apply(content: bytearray, entry: Entry) -> None:
    if entry.kind == "T":
        del content[entry.number :]
        content.extend(bytes(entry.number - len(content)))
    else:
        content.extend(bytes(max(0, entry.number - len(content))))
        content[entry.number : entry.number + len(entry.data)] = entry.data


class Image(NamedTuple):
    files: dict[str, bytes]
    lost: int
    """How many unflushed writes, in whole or in part, are not in it."""


class Disk:
    """The files by name, with what was flushed and what was not. Names become durable in order, with any flush: so do
    file systems with a journal.
    """

    def __init__(self) -> None:
        self._names: dict[str, _File] = {}
        self._flushed_names: dict[str, _File] = {}

    def step(self, entry: Entry) -> None:
        kind, path = entry.kind, entry.path
        file = self._names.get(path)
        if kind == "C":
            self._names[path] = _File()
        elif kind == "U":
            self._names.pop(path, None)
        elif kind == "R":
            self._names[entry.data.decode()] = self._names.pop(path)
        elif kind == "S":
            if file is not None:
                for one in file.pending:
                    _apply(file.flushed, one)
                file.pending = []
            self._flushed_names = dict(self._names)
        elif kind == "F" and file is not None:
            file.pending = []  # the kernel forgets what it could not write
        elif kind in "WT" and file is not None:
            file.pending.append(entry)

    def crash(self, rng: random.Random, way: str) -> Image:
        """Return what is left after a power cut, and change nothing."""
        names = self._names if rng.random() < 0.5 else self._flushed_names
        files, lost = {}, 0
        for path, file in names.items():
            content = bytearray(file.flushed)
            lost += _write_some(content, file.pending, rng, way)
            files[path] = bytes(content)
        return Image(files, lost)


def _write_some(content: bytearray, pending: list[Entry], rng: random.Random, way: str) -> int:
    """Apply some of the pending writes. Return how many were lost, in whole or in part."""
    if way == "nothing":
        return len(pending)
    kept = len(pending) if way == "everything" else rng.randint(0, len(pending))
    missing = rng.randrange(len(pending)) if pending else 0
    chance, lost = rng.choice([0.1, 0.5, 0.9, 0.99]), 0
    for index, entry in enumerate(pending):
        if way == "everything" or (way == "one missing" and index != missing) or (way == "torn" and index < kept):
            _apply(content, entry)
        elif way == "torn" and index == kept and entry.kind == "W":
            cut = rng.randint(0, len(entry.data)) // SECTOR * SECTOR
            _apply(content, entry._replace(data=entry.data[:cut]))
            lost += 1
        elif way in ("sectors", "late"):
            share = chance if way == "sectors" else (index + 1) / len(pending)
            sectors = [one for one in _sectors(entry) if rng.random() < share]
            for one in sectors:
                _apply(content, one)
            lost += len(sectors) < len(list(_sectors(entry)))
        else:
            lost += 1
    return lost


def _sectors(entry: Entry) -> Iterator[Entry]:
    if entry.kind == "T":
        yield entry
        return
    at = 0
    while at < len(entry.data):
        end = min(len(entry.data), at + SECTOR - (entry.number + at) % SECTOR)
        yield entry._replace(number=entry.number + at, data=entry.data[at:end])
        at = end


def write_image(image: Image, root: str, place: Path) -> None:
    for path, content in image.files.items():
        target = place / os.path.relpath(path, root)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
