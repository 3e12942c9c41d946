"""What a look at the database found, in words: each finding says what it means, and what mends it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct

from ...model.diagnosis import Examination, Some
from ...text import listed, plural

Severity = Literal["ok", "note", "warning", "error"]
SEVERITIES: tuple[Severity, ...] = ("ok", "note", "warning", "error")
DEFAULT_PREFIX = "holdfast_"


class Finding(Struct, frozen=True):
    """One thing that was looked at. `code` is for programs and does not change; the words may."""

    severity: Severity
    code: str
    meaning: str
    mend: str | None = None
    detail: dict[str, Any] = {}

    def __str__(self) -> str:
        return f"{self.severity}: {self.code}: {self.meaning}" + (f" Mend it: {self.mend}" if self.mend else "")


class Checkup(Struct, frozen=True):
    """All findings, the worst first."""

    findings: list[Finding]
    repaired: list[str]
    seconds: float

    @property
    def severity(self) -> Severity:
        """Of the worst finding."""
        return max((one.severity for one in self.findings), key=SEVERITIES.index, default="ok")

    @property
    def ok(self) -> bool:
        """Nothing is worse than a note."""
        return self.severity in ("ok", "note")

    @property
    def summary(self) -> str:
        counts = [(level, sum(one.severity == level for one in self.findings)) for level in reversed(SEVERITIES)]
        bad = [plural(count, level) for level, count in counts if count and level != "ok"]
        fine = f"{dict(counts)['ok']} of {len(self.findings)} checks are fine"
        return f"{', '.join(bad)}; {fine}." if bad else f"All is well: {fine}."

    def of(self, code: str) -> Finding | None:
        """The finding with this code, if there is one."""
        return next((one for one in self.findings if one.code == code), None)


def in_order(findings: Sequence[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda one: -SEVERITIES.index(one.severity))


# --- words that several checks share ---


def command(found: Examination, verb: str) -> str:
    """`holdfast …` on this very database, to be copied."""
    prefix = "" if found.prefix == DEFAULT_PREFIX else f" --prefix {found.prefix}"
    return f"holdfast {verb} --db {quoted_path(found)}{prefix}"


def quoted_path(found: Examination) -> str:
    return words(found.surroundings.path)


def words(*paths: str) -> str:
    """As arguments of a command."""
    from shlex import join

    return join(paths)


def count_of(some: Some, noun: str) -> str:
    """`1 job`, `12 jobs`, `1,000 jobs or more`."""
    return plural(some.count, noun) + (" or more" if some.more else "")


def ids_of(some: Some) -> str:
    """`4`, `4, 5 and 6`, `4, 5, 6, …`."""
    names = [str(id) for id in some.ids]
    return listed(names) if some.count <= len(names) else f"{', '.join(names)}, …"


def agree(count: int, one: str, many: str) -> str:
    """The form of a word that goes with the number."""
    return one if count == 1 else many
