"""What a job waits for, in words: each chain by its last job and how that is, and what would release the job."""

from __future__ import annotations  # so that they cost nothing at import

from collections.abc import Sequence

from ..store.circumstances import Blocker, Blockers
from ..wording import error, listed, moment, numbered, short

BADLY = ("failed", "cancelled")
MOST_BEHIND = 3
_ENDED = {  # of one, and of several
    "succeeded": ("has succeeded", "have succeeded"),
    "failed": ("has failed", "have failed"),
    "cancelled": ("was cancelled", "were cancelled"),
}


def is_blocked(one: Blocker) -> bool:
    """By others, and not by somebody outside."""
    return one.status == "blocked" and not one.external


def how_it_is(status: str) -> str:
    return _ENDED[status][0] if status in _ENDED else f"is {status}"


def waits_for(blockers: Blockers, holding: Sequence[Blocker], behind: Sequence[Blocker]) -> str:
    """holding: those to name. behind: what stands behind those that are blocked themselves."""
    named = _named(holding)
    if blockers.holding > len(holding):
        named.append(f"{blockers.holding - len(holding):,} more")
    if blockers.holding == 1:
        still = "still waits" if blockers.total > 1 else "waits"
        sentence = f"{still} for {named[0]}"
    else:
        of_all = "" if blockers.holding == blockers.total else f" of {blockers.total:,}"
        sentence = f"waits for {blockers.holding:,}{of_all} jobs: {listed(named, ';')}"
    if not behind:
        return sentence
    others = ["others"] if len(behind) > MOST_BEHIND else []
    verb = "stands" if len(behind) == 1 else "stand"
    return f"{sentence}; behind that {verb} {listed([*_named(behind[:MOST_BEHIND]), *others], ';')}"


def _named(blockers: Sequence[Blocker]) -> list[str]:
    """Each by its last job and how that is; those that are alike together."""
    alike: dict[tuple[str | None, str, str, str], list[int]] = {}
    named: list[str] = []
    for one in blockers:
        if one.id is None or one.status is None:
            named.append(f"chain {one.chain_id}, which was deleted")
        else:
            of_chain = "" if one.id == one.chain_id else f" of chain {one.chain_id}"
            alike.setdefault((one.task, *_standing(one), of_chain), []).append(one.id)
    for (task, is_so, are_so, of_chain), ids in alike.items():
        if len(ids) == 1:
            named.append(f"{numbered(ids[0], task)}{of_chain}, which {is_so}")
        else:
            named.append(f"jobs {listed([str(id) for id in ids])} ({short(task or '')}), which {are_so}")
    return named


def _standing(one: Blocker) -> tuple[str, str]:
    """How it is, in words about one, and about several."""
    if one.status == "blocked" and one.external:
        until = "" if one.timeout_at is None else f" until {moment(one.timeout_at)}"
        return f"waits for somebody to settle it{until}", f"wait for somebody to settle them{until}"
    if one.status == "blocked":
        return "is blocked itself", "are blocked themselves"
    is_so, are_so = _ENDED.get(one.status or "", (f"is {one.status}", f"are {one.status}"))
    code = f" with {error(one.error_code, None)}" if one.status == "failed" else ""
    return is_so + code, are_so + code


def release(job_id: int, holding: Sequence[Blocker], behind: Sequence[Blocker]) -> str:
    """What would let the job go on: about what is most in its way."""
    known = [*holding, *behind]
    first = next((one for one in known if not is_blocked(one)), known[0])
    if first.id is None:
        return f"It can only be ended: holdfast cancel {job_id}, or holdfast complete {job_id}"
    ended = [str(one.id) for one in known if one.status in BADLY]
    if ended:
        they = f"jobs {listed(ended)} have" if len(ended) > 1 else f"job {ended[0]} has"
        return f"It goes on when {they} succeeded: holdfast retry {' '.join(ended)}"
    if first.external and first.status == "blocked":
        return f"Settle job {first.id}: holdfast complete {first.id}, or holdfast fail {first.id} CODE"
    return f"Wait, or see how job {first.id} stands: holdfast explain {first.id}"
