"""How what a handler returned or raised becomes of its task."""

from __future__ import annotations

import asyncio
import concurrent.futures
from typing import Any

import pytest

from redpoll.bus import Envelope, Outcome, OutcomeKind, Payloads, Requeue, Retry
from redpoll.bus.tasks.ending import NOTHING, TRIES, Ending, Way, failed, returned, settle, tries_of
from redpoll.errors import DeadLettered, PayloadTooLarge, ResultTooLarge, TaskRejected

PAYLOADS = Payloads()


class Delivery:
    """Notes how it was ended."""

    def __init__(self, meta: dict[str, Any] | None = None, limit: int = 10_000) -> None:
        self.envelope = Envelope("raw", b"", meta)
        self.limit = limit
        self.acked: list[Outcome | None] = []
        self.rejected: list[dict[str, Any]] = []

    def ack(self, outcome: Outcome | None = None) -> None:
        """Take an outcome that is not too large."""
        if outcome is not None and outcome.envelope is not None and len(outcome.envelope.body) > self.limit:
            raise ResultTooLarge(len(outcome.envelope.body), self.limit)
        self.acked.append(outcome)

    def reject(self, **how: Any) -> None:
        """Go back."""
        self.rejected.append(how)


def ended(ending: Ending, delivery: Delivery | None = None, **options: Any) -> Delivery:
    """Carry an ending out."""
    delivery = delivery or Delivery()
    settle(delivery, ending, **options)  # type: ignore[arg-type]
    return delivery


@pytest.mark.parametrize(
    ("error", "way"),
    [
        (Requeue(), Way.REQUEUE),
        (TaskRejected(), Way.REJECT),
        (DeadLettered(), Way.DEAD),
        (DeadLettered("one that was waited for"), Way.DEAD),
        (KeyboardInterrupt(), Way.ERROR),
        (SystemExit(), Way.ERROR),
        (asyncio.CancelledError(), Way.CANCELLED),
        (concurrent.futures.CancelledError(), Way.CANCELLED),
        (ValueError(), Way.ERROR),
    ],
)
def test_what_is_raised(error: BaseException, way: Way) -> None:
    """Each thing that a handler may raise has its way; in a thread, what ends a program ends no more than the handler."""
    assert failed(error).way is way


def test_the_outcome_of_another_task_is_an_error() -> None:
    """A dead letter that was waited for makes none of the task that waited: it failed, and may be tried again."""
    error = DeadLettered("other", "hopeless")
    error.outcome = True
    assert failed(error, Retry())[::4] == (Way.ERROR, True)


@pytest.mark.parametrize("retry", [None, 3])
def test_whatever_is_raised_is_no_result(retry: Any) -> None:
    """Exceptions that cannot be looked at are errors; a subclass of Requeue need not call its constructor."""

    class Bare(Requeue):
        def __init__(self) -> None:
            pass

    class Hostile(ValueError):  # noqa: N818
        @property
        def args(self) -> Any:  # type: ignore[override]
            raise OSError("no arguments")

        def __str__(self) -> str:
            raise OSError

    assert failed(Bare(), retry) == Ending(Way.REQUEUE)
    odd: Any = Requeue()
    odd.delay = "5"
    for error in (odd, Hostile()):
        ending = failed(error, retry)
        assert ending.way is Way.ERROR
        assert ending.envelope is not None
    assert "Hostile" in failed(Hostile()).reason


def test_what_is_returned() -> None:
    """A result is packed; one that cannot be is an error."""
    assert returned(None, PAYLOADS) is NOTHING
    assert returned([1], PAYLOADS) == Ending(Way.RESULT, PAYLOADS.pack([1]))
    assert returned(object(), PAYLOADS).way is Way.ERROR


def test_outcomes() -> None:
    """Results, errors and cancellations are outcomes; one that is too large is told in short."""
    assert ended(NOTHING).acked == [None]
    assert ended(Ending(Way.CANCELLED, None, "why")).acked == [Outcome(OutcomeKind.CANCELLED, None, "why")]
    (large,) = ended(Ending(Way.RESULT, Envelope("raw", b"x" * 20_000))).acked
    assert large is not None
    assert large.kind is OutcomeKind.ERROR
    tiny = Delivery(limit=10)
    assert ended(failed(ValueError("x" * 300)), tiny).acked == [
        Outcome(OutcomeKind.ERROR, None, ("ValueError: " + "x" * 300)[:200])
    ]
    (none,) = ended(Ending(Way.RESULT, Envelope("raw", b"x" * 20)), Delivery(limit=10)).acked
    assert none is not None
    assert none.detail.startswith("ResultTooLarge: result of 20 bytes")
    assert issubclass(ResultTooLarge, PayloadTooLarge)


def test_ways_back() -> None:
    """What goes back is blamed, excluded or given up as it should be."""
    (back,) = ended(Ending(Way.REQUEUE, None, "later", 5.0)).rejected
    assert (back["delay"], back["exclude"], back["blame"], back["reason"]) == (5.0, False, False, "later")
    assert ended(Ending(Way.REJECT)).rejected[0]["exclude"]
    assert ended(Ending(Way.DIED, None, "signal 9")).rejected[0]["blame"]
    assert ended(Ending(Way.DEAD, None, "no")).rejected == [{"requeue": False, "reason": "no"}]


def test_tries_are_counted_in_the_envelope() -> None:
    """Each try adds one beside what the envelope says otherwise; a dead letter begins anew."""
    policy = Retry(times=2, backoff=1, jitter=0, dead_letter=True)
    ending = failed(OSError("again"), policy)
    delivery = Delivery({"other": 1, TRIES: 1})
    assert tries_of(delivery.envelope) == 1
    (again,) = ended(ending, delivery, retry=policy, blame=True).rejected
    assert again == {
        "delay": 2,
        "blame": True,
        "reason": "try 2 failed: OSError: again",
        "meta": {"other": 1, TRIES: 2},
    }
    (dead,) = ended(ending, Delivery(again["meta"]), retry=policy).rejected
    assert dead == {"requeue": False, "reason": "try 3 failed: OSError: again", "meta": {"other": 1, TRIES: 0}}
    assert tries_of(Envelope("raw", b"", {TRIES: "many"})) == 0


def test_an_error_whose_text_cannot_be_had() -> None:
    """It is an error like any other."""

    class Silent(Exception):  # noqa: N818
        def __str__(self) -> str:
            raise RuntimeError

    assert failed(Silent()).reason == "Silent: <its text cannot be had>"
