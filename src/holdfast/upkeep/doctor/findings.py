"""What the doctor reports: a list of findings, each with what it means and the command that fixes it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from msgspec import Struct

from ...text import plural

Severity = Literal["ok", "note", "warning", "error"]
SEVERITIES: tuple[Severity, ...] = ("ok", "note", "warning", "error")


class Finding(Struct, frozen=True):
    """The result of one check. `code` and `detail` are for programs; the wording of the texts may change."""

    severity: Severity
    code: str
    meaning: str
    mend: str | None = None
    detail: dict[str, Any] = {}

    def __str__(self) -> str:
        return f"{self.severity}: {self.code}: {self.meaning}" + (f" Fix: {self.mend}" if self.mend else "")


class Checkup(Struct, frozen=True):
    """All findings, the most severe first."""

    findings: list[Finding]
    repaired: list[str]
    seconds: float

    @property
    def severity(self) -> Severity:
        """The severity of the worst finding."""
        return max((finding.severity for finding in self.findings), key=SEVERITIES.index, default="ok")

    @property
    def ok(self) -> bool:
        """Whether no finding is worse than a note."""
        return self.severity in ("ok", "note")

    @property
    def summary(self) -> str:
        counts = {level: sum(finding.severity == level for finding in self.findings) for level in SEVERITIES}
        problems = [plural(counts[level], level) for level in ("error", "warning", "note") if counts[level]]
        passed = f"{counts['ok']} of {len(self.findings)} checks passed"
        return f"{', '.join(problems)}; {passed}." if problems else f"No problems: {passed}."

    def of(self, code: str) -> Finding | None:
        """Return the first finding with this code, if there is one."""
        return next((finding for finding in self.findings if finding.code == code), None)


def most_severe_first(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: -SEVERITIES.index(finding.severity))
