"""What the doctor finds in the database of an app."""

from typing import Any

from holdfast import Holdfast
from holdfast.upkeep.doctor.findings import Finding


def finding_of(app: Holdfast, code: str, severity: str, **options: Any) -> Finding:
    """The finding of this code, which has this severity."""
    checkup = app.check(**options)
    finding = checkup.of(code)
    assert finding is not None, [str(other) for other in checkup.findings]
    assert finding.severity == severity and finding.meaning.endswith((".", "?"))
    return finding


def problems(app: Holdfast, **options: Any) -> set[str]:
    """The codes of what is worse than a note."""
    return {one.code for one in app.check(**options).findings if one.severity in ("warning", "error")}
