"""What a running task may ask for: a parameter annotated `Context` is filled in and never part of the payload."""

from msgspec import Struct


class Context(Struct, frozen=True):
    """The attempt that is running. In an ordinary call of the task there is none: `job_id` is None."""

    job_id: int | None = None
    attempt: int = 0
    task: str = ""
    queue: str = ""
