"""Texts that would break a careless program: each comes back as it was, or is refused by name. None does harm."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.clock import SECOND
from holdfast.errors import InvalidInput
from holdfast.failure import DETAIL_LIMIT, ErrorTable, Failure, shorten
from support.refusals import refused, stored
from support.transitions import claim_tasks, fail

HOSTILE = [
    "'",
    '"',
    "'; DROP TABLE holdfast_jobs; --",
    '"; DELETE FROM holdfast_jobs; --',
    "' OR '1'='1",
    "%",
    "_",
    "*",
    "%s %d {p} {where} {columns} :queue ?1 @x $y",
    "{p}jobs",
    "NULL",
    "null",
    "0",
    " ",
    " padded ",
    "\\",
    "\\x00 \\u0000 \\n",
    '{"a": 1}',
    "[1]",
    "é",
    "e\u0301",
    "Straße",
    "日本語",
    "🙂",
    "👩‍👩‍👧‍👦",
    "שלום עולם",
    "\u202eevil\u202c",
    "a\u200bb",
    "\ufeffbom",
    "𝕳𝖔𝖑𝖉",
    "q" * 200,
    "🙂" * 200,
    "a\nb",
    "a\tb",
    "a\x00b",
    "\x00",
    "\x1b[31mred",
    "\x7f",
    "\ud800",
    "q" * 100_000,
]


@pytest.fixture
def crowd(app: Holdfast) -> Holdfast:
    """There are other messages, which must stay untouched."""
    app.queue("bystander").send_many(["a", "b"])
    return app


def untouched(app: Holdfast) -> bool:
    return app.queue("bystander").stats().ready == 2


def accepts(app: Holdfast, word: str, call: Callable[..., object]) -> bool:
    """Whether the text was taken; otherwise it was refused by name, and nothing is stored."""
    before = stored(app)
    try:
        call()
    except InvalidInput as error:
        assert word in str(error) and len(str(error)) < 1500
        assert stored(app) == before
        return False
    return True


def test_a_hostile_queue_name_is_only_a_name(crowd: Holdfast, subtests: pytest.Subtests) -> None:
    for text in HOSTILE:
        with subtests.test(ascii(text)[:30]):
            if not accepts(crowd, "queue name", lambda text=text: crowd.queue(text).send("x")):
                continue
            queue = crowd.queue(text)
            assert [job.queue for job in crowd.jobs.list(queue=text)] == [text]
            assert len(crowd.jobs.list(queue=[text, "nobody"])) == 1
            assert queue.pause() and queue.receive() is None and queue.resume()
            message = queue.receive()
            assert message is not None and text.strip() in repr(message)
            assert message.release() and queue.stats().ready == 1
            assert queue.purge() == 1
            assert untouched(crowd)


def test_a_hostile_key_is_only_a_key(crowd: Holdfast, subtests: pytest.Subtests) -> None:
    inbox = crowd.queue("inbox")
    for text in HOSTILE:
        with subtests.test(ascii(text)[:30]):
            if not accepts(crowd, "key", lambda text=text: inbox.send("x", key=text)):
                continue
            assert inbox.send("y", key=text) == inbox.send("z", key=text)
            assert [job.key for job in crowd.jobs.list(key=text)] == [text]
            assert crowd.jobs.delete(key=text) == 1
            assert untouched(crowd)


def test_a_hostile_tag_is_only_a_tag(crowd: Holdfast, subtests: pytest.Subtests) -> None:
    @crowd.task
    def work() -> None: ...

    for text in HOSTILE:
        with subtests.test(ascii(text)[:30]):
            if not accepts(crowd, "tag", lambda text=text: work.using(tags=["plain", text]).enqueue()):
                continue
            assert [job.tags for job in crowd.jobs.list(tag=text)] == [("plain", text)]
            assert crowd.jobs.cancel(tag=[text]) == 1
            assert untouched(crowd)


def test_a_hostile_task_name_is_only_a_name(crowd: Holdfast, subtests: pytest.Subtests) -> None:
    def work(n: int) -> None: ...

    for text in HOSTILE:
        with subtests.test(ascii(text)[:30]):
            if not accepts(crowd, "task name", lambda text=text: crowd.task(name=text)(work).enqueue(1)):
                continue
            assert [(job.task, job.args) for job in crowd.jobs.list(task=text)] == [(text, {"n": 1})]
            claimed = claim_tasks(crowd.store, None, [text], 5, 30 * SECOND, "worker")
            assert [one.task for one in claimed] == [text]


def test_a_hostile_actor_is_only_text_in_the_history(crowd: Holdfast, subtests: pytest.Subtests) -> None:
    for text in HOSTILE:
        with subtests.test(ascii(text)[:30]):
            job = crowd.queue("inbox").send("x")
            if accepts(crowd, "actor", lambda job=job, text=text: crowd.jobs.cancel(job, actor=text)):
                assert crowd.jobs.history(job)[-1].actor == text
            assert untouched(crowd)


def test_a_hostile_reason_is_only_a_short_text(crowd: Holdfast, subtests: pytest.Subtests) -> None:
    for text in HOSTILE:
        with subtests.test(ascii(text)[:30]):
            job = crowd.queue("inbox").send("x")
            if accepts(crowd, "reason", lambda job=job, text=text: crowd.jobs.cancel(job, reason=text)):
                assert crowd.jobs.get(job).error_detail == shorten(text)
            assert untouched(crowd)


def test_a_hostile_error_is_only_text_in_the_history(crowd: Holdfast, subtests: pytest.Subtests) -> None:
    for text in HOSTILE:
        with subtests.test(ascii(text)[:30]):
            crowd.queue("inbox").send("x")
            (claimed,) = crowd.store.jobs.claim_messages("inbox", 1, 30 * SECOND, "worker")
            try:
                raise ValueError(text)
            except ValueError as error:
                failure = ErrorTable().failure(error)
            assert fail(crowd.store, claimed.lease, failure)
            detail = crowd.jobs.get(claimed.id).error_detail
            assert detail == shorten(f"ValueError: {text}") and len(detail) <= DETAIL_LIMIT
            assert crowd.jobs.history(claimed.id)[-1].name == "failed"
            assert Path(__file__).name in (crowd.jobs.traceback(failure.fingerprint or "") or "")


def test_a_long_message_does_not_push_the_frames_out_of_the_traceback() -> None:
    try:
        raise ValueError("x" * 100_000)
    except ValueError as error:
        assert Path(__file__).name in (ErrorTable().failure(error).traceback or "")


def test_a_hostile_filter_finds_nothing_and_removes_nothing(crowd: Holdfast, subtests: pytest.Subtests) -> None:
    for text in HOSTILE:
        for name in ("queue", "task", "key", "error_code", "tag"):
            for value in (text, [text, "nobody"]):
                with subtests.test(f"{name}={ascii(value)[:30]}"):
                    if accepts(crowd, name, lambda name=name, value=value: crowd.jobs.list(**{name: value})):
                        filters: Any = {name: value}
                        assert len(crowd.jobs.list(**filters)) == 0
                        assert crowd.jobs.delete(**filters) == 0
                    assert untouched(crowd)


def test_a_filter_with_a_nul_is_not_cut_short_to_another_ones_name(app: Holdfast) -> None:
    """json_each ends a text at the first NUL: 'payroll\\0x' must not stand for 'payroll'."""
    app.queue("payroll").send("kept")
    for filters in ({"queue": ["payroll\0x", "nobody"]}, {"queue": "payroll\0x"}):
        if accepts(app, "queue", lambda filters=filters: app.jobs.delete(**filters)):
            assert app.queue("payroll").stats().ready == 1


def test_a_hostile_error_code_does_not_make_the_history_unreadable(app: Holdfast, subtests: pytest.Subtests) -> None:
    """No caller can give one, but a store that was handed one must not write a log that cannot be read."""
    for code in ("", "lower", 'A"B', "A\\B", "A:B\n", "\x00", "🙂", "X" * 1000):
        with subtests.test(ascii(code)[:30]):
            app.queue("inbox").send("x")
            (claimed,) = app.store.jobs.claim_messages("inbox", 1, 30 * SECOND, "worker")
            assert fail(app.store, claimed.lease, Failure(code, "detail"))
            assert app.jobs.history(claimed.id)[-1].name == "failed"


def test_a_hostile_body_comes_back_as_it_was(crowd: Holdfast, subtests: pytest.Subtests) -> None:
    inbox = crowd.queue("inbox")
    for text in HOSTILE:
        with subtests.test(ascii(text)[:30]):
            body = {"text": text, "list": [text], text: 1}
            if accepts(crowd, "surrogate", lambda body=body: inbox.send(body)):
                inbox.send_many([body, body])
                assert [message.body for message in inbox.receive_many(5)] == [body] * 3


def test_any_text_at_all_comes_back_as_it_was(app: Holdfast) -> None:
    chance = random.Random(20240229)
    alphabet = [chr(code) for code in (*range(0x100), *range(0x2000, 0x2100), *range(0xFFF0, 0x10010), 0x10FFFF)]
    texts = ["".join(chance.choices(alphabet, k=50)) for _ in range(300)]
    inbox = app.queue("inbox")
    inbox.send_many(texts)
    for text in texts[:50]:
        inbox.send(text)
    assert [message.body for message in inbox.receive_many(1000)] == [*texts, *texts[:50]]


def test_a_hostile_fingerprint_finds_no_traceback(app: Holdfast) -> None:
    assert app.jobs.traceback("' OR 1=1 --") is None
    with refused(app, InvalidInput, "fingerprint"):
        app.jobs.traceback("\x00")
