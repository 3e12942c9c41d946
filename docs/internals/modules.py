"""Write the module tables of docs/internals/architecture.md from the first sentence of each module's docstring.

make modules
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "holdfast"
PAGE = Path(__file__).with_name("architecture.md")
BEGIN, END = "<!-- made by docs/internals/modules.py -->\n", "<!-- end -->\n"


def first_sentence(module: Path) -> str:
    text = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return re.split(r"(?<=[.!?]) (?=[A-Z`])", paragraph)[0].rstrip(".").replace("|", "\\|")


def tables() -> str:
    parts = []
    for folder in sorted({file.parent for file in PACKAGE.rglob("*.py")}):
        name = "/".join(["holdfast", *folder.relative_to(PACKAGE).parts])
        parts.append(f"### {name}\n\n{first_sentence(folder / '__init__.py')}.\n\n| module | contents |\n|---|---|\n")
        modules = sorted(file for file in folder.glob("*.py") if file.name != "__init__.py")
        parts += [f"| `{file.stem}` | {first_sentence(file)} |\n" for file in modules]
        parts.append("\n")
    return "".join(parts)


def page_with(new: str, page: str) -> str:
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{new}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page_with(tables(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")
