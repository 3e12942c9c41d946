"""The form of a check, and the one place that turns checks into findings.

The checks themselves are tables: `CHECKS` in checks_sqlite.py, checks_postgres.py, checks_schema.py and
checks_jobs.py. To add one, touch four files:

1. `sql/doctor_samples.sql` of both stores: a query that returns the ids of the affected jobs. It is run by itself.
2. One of the tables: a `Check`, or one more `Case` of an existing one, that names the query.
3. A test that brings the problem about: tests/conformance/test_doctor.py, or tests/sqlite/ and tests/postgres/
   for what only a file or a server has.

Then `python docs/generate_doctor.py` writes the new row into docs/reference/doctor.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from shlex import join
from typing import Any, Literal

from msgspec import Struct

from ...model.diagnosis import Diagnosis, Sample, SkippedPart
from ...text import clean, listed, plural

Severity = Literal["ok", "note", "warning", "error"]
SEVERITIES: tuple[Severity, ...] = ("ok", "note", "warning", "error")


class Finding(Struct, frozen=True):
    """The result of one check. `code` and `detail` are for programs; the wording of the texts may change."""

    severity: Severity
    code: str
    meaning: str
    fix: str | None = None
    detail: dict[str, Any] = {}

    def __str__(self) -> str:
        return f"{self.severity}: {self.code}: {self.meaning}" + (f" Fix: {self.fix}" if self.fix else "")


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


DEFAULT_PREFIX = "holdfast_"
DEFAULT_SCHEMA = "public"


class Evidence(Struct, frozen=True):
    """What a case found: data for programs, and values for the {placeholders} of its texts."""

    detail: dict[str, Any] = {}
    text: dict[str, str] = {}


Found = Evidence | list[Evidence] | bool | None  # True: without values


class Case(Struct, frozen=True):
    """One possible result of a check: a row of the table. Its texts have the {placeholders} of its evidence."""

    code: str  # stable
    severity: Severity
    find: str | Callable[[Diagnosis], Found]  # the name of a query of doctor_samples.sql, or a function
    found: str  # what was found
    means: str = ""  # what it means, and what to do
    fix: str = ""  # a command
    guide: str = ""  # a section of the documentation
    blocks_repair: bool = False


class Check(Struct, frozen=True):
    """A question, and its possible results. A case with severity `ok` applies if no other one does."""

    question: str
    cases: tuple[Case, ...]
    needs: tuple[str, ...] = ()  # parts of the diagnosis besides the queries that the cases name

    @property
    def parts(self) -> set[str]:
        """The parts of the diagnosis that this check looks at."""
        return {*self.needs, *(case.find for case in self.cases if isinstance(case.find, str))}

    def run(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """Yield findings. Nothing is said about parts that were not read, and `ok` only if all of them were."""
        if self.parts and not self.parts & diagnosis.examined:
            return
        passed = self.parts <= diagnosis.examined
        for case in sorted(self.cases, key=lambda case: case.severity == "ok"):
            if case.severity != "ok" or passed:
                for evidence in _evidence(case, diagnosis):
                    passed = False
                    yield render(case, evidence, diagnosis)


def render(case: Case, evidence: Evidence, diagnosis: Diagnosis) -> Finding:
    values = _common_values(diagnosis) | evidence.text
    meaning = " ".join(text.format(**values) for text in (case.found, case.means) if text)
    return Finding(case.severity, case.code, meaning, case.fix.format(**values) or None, evidence.detail)


def _evidence(case: Case, diagnosis: Diagnosis) -> list[Evidence]:
    result = from_sample(diagnosis, case.find) if isinstance(case.find, str) else case.find(diagnosis)
    if isinstance(result, Evidence):
        return [result]
    return result if isinstance(result, list) else [Evidence()] if result else []


def _common_values(diagnosis: Diagnosis) -> dict[str, str]:
    """{file}, {folder}, {shell} and {database} are for commands, the others for sentences."""
    path, prefix, server = diagnosis.file.path, diagnosis.prefix, diagnosis.server
    file = quoted(path if server is None else server.shown)
    schema = "" if server is None or server.schema == DEFAULT_SCHEMA else f" --schema {server.schema}"
    elsewhere = f"--db {file}{schema}"
    return {
        "path": clean(path if server is None else server.shown),
        "file": file,
        "folder": quoted(str(Path(path).parent)),
        "shell": f"sqlite3 {file}" if server is None else f"psql {file} -c",
        "elsewhere": elsewhere,
        "database": elsewhere + ("" if prefix == DEFAULT_PREFIX else f" --prefix {prefix}"),
        "prefix": prefix,
        "sqlite_version": diagnosis.sqlite_version,
    }


# --- for the functions that find something ---


def always(_: Diagnosis) -> bool:
    return True


def found(detail: dict[str, Any] | None = None, **text: str) -> Evidence:
    return Evidence(detail or {}, text)


def from_sample(diagnosis: Diagnosis, query: str) -> Evidence | None:
    """Return {jobs} as "2 jobs (4 and 5)" and {id} as the first id, or None if the query found nothing."""
    sample = diagnosis.samples.get(query)
    if not sample:
        return None
    detail = {"jobs": sample.count, "ids": sample.ids}
    return found(detail, jobs=f"{counted(sample, 'job')} ({ids(sample)})", id=str(sample.ids[0]))


def counted(sample: Sample, noun: str) -> str:
    """Return `1 job`, `12 jobs`, or `1,000 jobs or more`."""
    return plural(sample.count, noun) + (" or more" if sample.more else "")


def ids(sample: Sample) -> str:
    """Return `4`, `4, 5 and 6`, or `4, 5, 6, …`."""
    names = [str(id) for id in sample.ids]
    return listed(names) if sample.count <= len(names) else f"{', '.join(names)}, …"


def part_names(skipped: list[SkippedPart]) -> str:
    """Return `jobs, old rows and ends`: the names of parts that were not read."""
    return listed([one.name.replace("_", " ") for one in skipped])


def first_of(names: list[str], most: int) -> str:
    """Return `a, b and 3 more`."""
    return listed([*names[:most], *([f"{len(names) - most} more"] if len(names) > most else [])])


def quoted(*words: str) -> str:
    """Return words as arguments of a shell command."""
    return join(words)
