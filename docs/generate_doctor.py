"""Write the list of checks in docs/reference/doctor.md: `python docs/generate_doctor.py`.

The list is made from the tables in holdfast.upkeep.doctor; what stands above the marker is written by hand.
"""

import re
from pathlib import Path

from holdfast.upkeep.doctor.check import Case
from holdfast.upkeep.doctor.doctor import SECTIONS

PAGE = Path(__file__).parent / "reference" / "doctor.md"
ESCAPED_BAR = r"\|"
MARKER = "<!-- Written by docs/generate_doctor.py from here on. -->\n"


def with_checks(page: str) -> str:
    """Return the page with the list of checks replaced."""
    written, _, _ = page.partition(MARKER)
    return "\n".join([written + MARKER, *_sections()]) + "\n"


def _sections() -> list[str]:
    lines: list[str] = []
    for title, checks in SECTIONS.items():
        lines += [f"## {title}", ""]
        for check in checks:
            lines += [f"### {check.question}", "", "| code | severity | finding | fix |", "|---|---|---|---|"]
            lines += [*map(_row, check.cases), ""]
    return lines[:-1]


def _row(case: Case) -> str:
    text = re.sub(r"{(\w+)}", lambda match: f"*{_words(match)}*", f"{case.found} {case.means}".strip())
    if case.guide:
        text += f" [More]({_link(case.guide)})."
    fix = re.sub(
        r"{(\w+)}(\w?)", lambda match: f"<{_words(match)}>{' ' if match[2] else ''}{match[2]}", _command(case)
    )
    cells = (f"`{case.code}`", case.severity, text, f"`{fix}`" if fix else "")
    return f"| {' | '.join(cell.replace('|', ESCAPED_BAR) for cell in cells)} |"


def _command(case: Case) -> str:
    return case.fix.replace(" {database}", "")


def _words(match: re.Match[str]) -> str:
    return match[1].replace("_", " ")


def _link(guide: str) -> str:
    return guide.removeprefix("reference/") if guide.startswith("reference/") else f"../{guide}"


if __name__ == "__main__":
    PAGE.write_text(with_checks(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
