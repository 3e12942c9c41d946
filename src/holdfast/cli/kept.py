"""How long things are kept, and what goes next: the last of the five answers, in words."""

from __future__ import annotations  # so that they cost nothing at import

from typing import TYPE_CHECKING, Any

from ..wording import size
from .text import age, due, optional_iso, plural

if TYPE_CHECKING:
    from datetime import datetime

    from ..observe.answers import Kept, Storage


def in_words(kept: Kept, storage: Storage, now: datetime) -> list[str]:
    words = [f"the file has {size(storage.database_bytes)}"]
    if storage.free_bytes_in_file:
        words.append(f"{size(storage.free_bytes_in_file)} of it unused")
    words.append(f"its log {size(storage.wal_bytes)}")
    words.append(f"{size(storage.disk_free_bytes)} free on the disk")
    sentences = [", ".join(words)]
    if kept.rules is None:
        return [*sentences, "the rules are of another version of Holdfast: nothing is deleted"]
    sentences.append(f"kept: {kept.rules}{'' if kept.automatic else ' (only when somebody prunes)'}")
    if kept.due:
        jobs = f"{kept.due:,}+ jobs" if kept.more_due else plural(kept.due, "job")
        sentences.append(f"to be deleted now: {jobs}")
    elif kept.next_at is not None:
        sentences.append(f"next to be deleted: job {kept.next_job_id}, {due(kept.next_at, now)}")
    if kept.last_pruned_at is not None:
        sentences.append(f"last pruned {age(kept.last_pruned_at, now)} ago: {plural(kept.last_pruned_jobs, 'job')}")
    if kept.left_behind:
        sentences.append(f"rows of {plural(kept.left_behind, 'deleted job')} are left: holdfast doctor --repair")
    else:
        sentences.append("deleting left nothing behind")
    return sentences


def as_data(kept: Kept) -> dict[str, Any]:
    return {
        "rules": kept.rules,
        "automatic": kept.automatic,
        "due": kept.due,
        "more_due": kept.more_due,
        "next_job_id": kept.next_job_id,
        "next_at": optional_iso(kept.next_at),
        "last_pruned_at": optional_iso(kept.last_pruned_at),
        "last_pruned_jobs": kept.last_pruned_jobs,
        "left_behind": kept.left_behind,
    }
