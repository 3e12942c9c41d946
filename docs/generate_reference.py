"""Write the parts of docs/reference that are made from the code, between their markers. Run it after a change of
`holdfast.errors`, of the options of a task or of `Job`; a test fails if a page is out of date.
"""

import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from holdfast import errors, failure
from holdfast.app.job import Job, Stored
from holdfast.app.options import JOB_OPTIONS, OPTIONS, EnqueueOptions, TaskDecoratorOptions, TaskOptions

DOCS = Path(__file__).parent


def tree() -> str:
    """Return all exceptions as a tree, with the built-in exceptions that they also are."""
    lines = ["HoldfastError", *_branches(errors.HoldfastError, "")]
    return "\n".join(["```text", *lines, "```"])


def _branches(parent: type, indent: str) -> Iterator[str]:
    children = [one for one in _exceptions() if one.__bases__[0] is parent]
    for child in children:
        last = child is children[-1]
        built_in = "".join(f" ({base.__name__})" for base in child.__bases__[1:])
        yield f"{indent}{'└' if last else '├'}── {child.__name__}{built_in}"
        yield from _branches(child, indent + ("    " if last else "│   "))


def _exceptions() -> list[type]:
    return [one for one in vars(errors).values() if inspect.isclass(one) and issubclass(one, Exception)]


def exceptions() -> str:
    """Return one table for each section of errors.py."""
    source = inspect.getsource(errors)
    parts: list[str] = []
    for section in re.split(r"^# --- ", source, flags=re.MULTILINE)[1:]:
        title = section.partition(" ---")[0]
        rows = [_row(getattr(errors, name)) for name in re.findall(r"^class (\w+)", section, re.MULTILINE)]
        parts.append("\n".join([f"### {title}", "", "| exception | when | what to do |", "|---|---|---|", *rows]))
    return "\n\n".join(parts)


def _row(exception: type) -> str:
    when, _, to_do = " ".join((exception.__doc__ or "").split()).partition(" To do: ")
    return f"| `{exception.__name__}` | {_linked(when)} | {_linked(to_do)} |".replace("|  |", "| |")


def _linked(text: str) -> str:
    """Turn `docs/guides/x.md#y` and `docs/internals/x.md` into links."""
    return re.sub(r"docs/((?:guides|internals)/([\w-]+)\.md[\w#-]*)", r"[\2](../\1)", text)


def built_in_codes() -> str:
    """Return the codes of exceptions that a task raises."""
    rows = [f"| {_exception_name(one)} | `{code}` |" for one, code in failure.BUILT_IN_CODES.items()]
    return "\n".join(["| exception | code |", "|---|---|", *rows])


def _exception_name(one: type) -> str:
    if one is BaseException:
        return "any other"
    return f"`{one.__name__}`" if one.__module__ == "builtins" else f"Holdfast's `{one.__name__}`"


def own_codes() -> str:
    """Return the codes that Holdfast itself gives."""
    rows = [f"| `{code}` | {when} |" for code, when in errors.OWN_CODES.items()]
    return "\n".join(["| code | when |", "|---|---|", *rows])


def task_options() -> str:
    """Return the options of `@app.task` with their defaults."""
    defaults = dict(
        zip(reversed(TaskOptions.__struct_fields__), reversed(TaskOptions.__struct_defaults__), strict=False)
    )
    special = {"name": "the function's name", "retry": "`backoff()`", "timeout": "none", "expires": "none"}
    special |= {"retry_on": "all exceptions", "give_up_on": "none"}
    rows = [
        f"| `{name}` | {special.get(name) or _code(defaults[name])} | {OPTIONS[name].meaning} |"
        for name in TaskOptions.__struct_fields__
    ]
    assert set(TaskOptions.__struct_fields__) == set(TaskDecoratorOptions.__annotations__)
    return "\n".join(["| parameter | default | meaning |", "|---|---|---|", *rows])


def _code(value: object) -> str:
    return f'`"{value}"`' if isinstance(value, str) else str(value)


def using_options() -> str:
    """Return the options of `task.using`."""
    names = ", ".join(f"`{name}`" for name in JOB_OPTIONS)
    others = [name for name in EnqueueOptions.__annotations__ if name not in JOB_OPTIONS]
    rows = [f"| {names} | instead of the task's |"]
    rows += [f"| `{name}` | {OPTIONS[name].meaning} |" for name in others]
    return "\n".join(["| option | meaning |", "|---|---|", *rows])


def attributes_of_a_job() -> str:
    """Return the attributes of `Job`."""
    rows = [
        f"| `{name}` | {_linked(' '.join((one.__doc__ or '').split()))} |"
        for name, one in vars(Job).items()
        if isinstance(one, (property, Stored))
    ]
    return "\n".join(["| attribute | what |", "|---|---|", *rows])


def options_of_a_task() -> str:
    """Return the names of the options of `@app.task`."""
    return _wrapped(f"Options: {_listed(TaskOptions.__struct_fields__)}: see [settings](settings.md#of-a-task).")


def options_of_using() -> str:
    """Return the names of the options of `task.using`."""
    names = [*JOB_OPTIONS, *(name for name in EnqueueOptions.__annotations__ if name not in JOB_OPTIONS)]
    return _wrapped(f"`using` takes {_listed(names)}: see [settings](settings.md#options-of-using).")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names[:-1]) + f" and `{names[-1]}`"


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, 118, break_long_words=False, break_on_hyphens=False))


PARTS = {
    "reference/api.md": [options_of_a_task, options_of_using, attributes_of_a_job],
    "reference/errors.md": [tree, exceptions, built_in_codes, own_codes],
    "reference/settings.md": [task_options, using_options],
}


def generated(page: str) -> str:
    """Return the text of a page with all its generated parts renewed."""
    text = (DOCS / page).read_text(encoding="utf-8")
    for part in PARTS[page]:
        name = part.__name__.replace("_", " ")
        begin, end = f"<!-- generated: {name} -->\n", f"<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise SystemExit(f"docs/{page} must have the markers {begin.strip()} and {end}")
        text = f"{before}{begin}\n{part()}\n\n{end}{after}"
    return text


if __name__ == "__main__":
    for page in PARTS:
        (DOCS / page).write_text(generated(page), encoding="utf-8")
