"""Write docs/reference/cli.md from docs/templates/cli.md.in and the help of the commands.

    python docs/generate_cli.py

The template has the text that help does not have: output, exit codes, example sessions, JSON fields. A line
`{{commands}}`, `{{command NAME}}` or `{{options NAME …}}` in it is replaced by what the code says.
"""

import re
from collections.abc import Collection, Iterator
from pathlib import Path

import click

from holdfast.cli import main

DOCS = Path(__file__).parent
TEMPLATE, PAGE = DOCS / "templates" / "cli.md.in", DOCS / "reference" / "cli.md"
DATABASE = ("--db", "--app", "--prefix", "--schema")
FILTERS = ("--status", "--queue", "--task", "--tag", "--arg", "--key", "--error-code", "--batch", "--since")
WITH_FILTERS = ("jobs", "retry", "cancel", "run-now", "delete")
# With the settings of the command itself: click keeps the help option that it makes first.
CONTEXT = click.Context(main, info_name="holdfast", max_content_width=1000, **main.context_settings)


def page() -> str:
    """Return the text of the page."""
    text = TEMPLATE.read_text(encoding="utf-8")
    text = re.sub(r"^\{\{commands\}\}$", lambda _: command_table(), text, flags=re.MULTILINE)
    text = re.sub(r"^\{\{options (.+)\}\}$", lambda match: option_table("jobs", match[1].split()), text, flags=re.M)
    return re.sub(r"^\{\{command (\S+)\}\}$", lambda match: command_text(match[1]), text, flags=re.MULTILINE)


def find(name: str, group: click.Group = main) -> click.Command:
    command = group.get_command(CONTEXT, name)
    assert command is not None, name
    return command


def command_table() -> str:
    rows = [f"| [`{name}`](#{name}) | {find(name).get_short_help_str(200)} |" for name in main.list_commands(CONTEXT)]
    return "\n".join(["| command | |", "|---|---|", *rows])


def command_text(name: str) -> str:
    command = find(name)
    blocks = [*usage_and_help(f"holdfast {name}", command)]
    # `move` has two databases, so it has options of its own for them.
    hidden = {*(() if name == "move" else DATABASE), *(FILTERS if name in WITH_FILTERS else ())}
    blocks.append(options(command, hidden))
    if name in WITH_FILTERS:
        blocks.append("Takes all [filters](#filters).")
    blocks.append(examples(command))
    if isinstance(command, click.Group):
        for sub in command.list_commands(CONTEXT):
            blocks += [f"### {name} {sub}", *usage_and_help(f"holdfast {name} {sub}", find(sub, command))]
            blocks.append(options(find(sub, command), hidden))
    return "\n\n".join(block for block in blocks if block)


def usage_and_help(path: str, command: click.Command) -> Iterator[str]:
    yield f"`{path} {' '.join(command.collect_usage_pieces(CONTEXT))}`"
    for paragraph in (command.help or "").split("\n\n"):
        if paragraph.startswith("\b"):
            yield re.sub(r"^(\d)  ", r"\1. ", code(paragraph.removeprefix("\b\n")), flags=re.MULTILINE)
        else:
            yield code(" ".join(paragraph.split()))


def options(command: click.Command, hidden: Collection[str]) -> str:
    return table(option for option in command.params if not hidden & set(option.opts)) if command.params else ""


def option_table(name: str, names: Collection[str]) -> str:
    return table(option for option in find(name).params if set(names) & set(option.opts))


def table(parameters: Iterator[click.Parameter]) -> str:
    options = (one for one in parameters if isinstance(one, click.Option))
    records = [record for one in options if (record := one.get_help_record(CONTEXT)) is not None]
    cells = [(f"`{names}`".replace("|", r"\|"), code(text).replace("|", r"\|")) for names, text in records]
    rows = [f"| {names} | {text} |" for names, text in cells]
    return "\n".join(["| option | meaning |", "|---|---|", *rows]) if rows else ""


def examples(command: click.Command) -> str:
    lines = (command.epilog or "").splitlines()[2:]
    return "\n".join(["```sh", *(line.strip() for line in lines), "```"]) if lines else ""


def code(text: str) -> str:
    """Mark options and environment variables as code, except in what is marked already."""
    pattern = r"`[^`]*`|(?<![\w`-])(?:--?[a-z][\w-]*|\$?HOLDFAST_URL|@app\.(?:cron|every))(?!\w)"
    return re.sub(pattern, lambda found: found[0] if found[0].startswith("`") else f"`{found[0]}`", text)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
