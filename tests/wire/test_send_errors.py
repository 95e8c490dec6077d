from __future__ import annotations

import pytest

from redpoll.errors import (
    Cancelled,
    ConfirmTimeout,
    Expired,
    HandlerFailed,
    MessageTooLarge,
    NotConfirmed,
    NotSent,
    PeerLost,
    SendError,
    ShuttingDown,
    Withdrawn,
)
from redpoll.wire.outgoing import Stage
from redpoll.wire.send_errors import refusal_error, too_large_error, unsent_error, with_cause
from tests.wire.support import REQ_ACK, RETRY, THERE, Sent

LOST = PeerLost(THERE, "cut")


def sending(*, again: bool = False, stage: int = Stage.SENT) -> Sent:
    out = Sent(b"body", REQ_ACK | (RETRY if again else 0))
    out.stage = stage
    return out


def test_cause() -> None:
    """An error gets its cause where there is one, and keeps none where there is none."""
    assert with_cause(NotSent(None, "no"), LOST).__cause__ is LOST
    assert with_cause(NotSent(None, "no"), None).__cause__ is None


@pytest.mark.parametrize(
    ("error", "again", "expected"),
    [
        (NotSent(None, "why"), False, NotSent),
        (Expired(None, 1.0, "waiting"), False, Expired),
        (NotSent(None, "why"), True, NotConfirmed),
        (Expired(None, 1.0, "waiting"), True, ConfirmTimeout),
    ],
)
def test_unsent(error: NotSent, again: bool, expected: type[SendError]) -> None:
    """A message that the peer does not have was not sent, unless it was sent before: then it may have been handled."""
    ends = unsent_error(sending(again=again), error, THERE, LOST)
    assert (type(ends), ends.sent, ends.__cause__) == (expected, again, LOST)


@pytest.mark.parametrize("again", [False, True])
def test_too_large(again: bool) -> None:
    """A message that the other end rejects as too large was not sent, unless it was sent before."""
    error = too_large_error(sending(again=again), 3, THERE)
    if again:
        assert isinstance(error, NotConfirmed)
        error = error.__cause__  # type: ignore[assignment]
    assert isinstance(error, MessageTooLarge)
    assert (error.size, error.limit) == (4, 3)


@pytest.mark.parametrize(
    ("code", "again", "stage", "expected"),
    [
        (HandlerFailed.code, False, Stage.SENT, HandlerFailed),
        (HandlerFailed.code, True, Stage.SENT, HandlerFailed),
        (ShuttingDown.code, False, Stage.SENT, ShuttingDown),
        (ShuttingDown.code, True, Stage.SENT, NotConfirmed),
        (Withdrawn.code, False, Stage.SENT, Expired),
        (Withdrawn.code, True, Stage.SENT, ConfirmTimeout),
        (Cancelled.code, False, Stage.SENT, Cancelled),
        (Cancelled.code, False, Stage.WITHDRAWING, ConfirmTimeout),
    ],
)
def test_of_refusal(code: int, again: bool, stage: int, expected: type[SendError]) -> None:
    """A refusal is the error, unless an earlier sending or a deadline is decisive; `sent` is true if work may be done."""
    error = next(each for each in (HandlerFailed, ShuttingDown, Withdrawn, Cancelled) if each.code == code)(None, "no")
    ends = refusal_error(sending(again=again, stage=stage), error, THERE)
    assert type(ends) is expected
    assert ends is error or ends.__cause__ is (None if expected is Expired else error)
    assert ends.sent == (again or code in {HandlerFailed.code, Cancelled.code})
