"""With which error a sending ends: what is known of it decides whether it counts as sent."""

from __future__ import annotations

from typing import Any

from redpoll.address import Address
from redpoll.errors import (
    Cancelled,
    ConfirmTimeout,
    Expired,
    MessageTooLarge,
    NotConfirmed,
    NotSent,
    SendError,
    Withdrawn,
)
from redpoll.wire.frames import Kind
from redpoll.wire.outgoing import Outgoing, Stage

__all__ = ["because", "of_refusal", "too_large", "unsent"]

_RETRY = int(Kind.RETRY)


def because(error: Any, cause: BaseException | None) -> Any:
    """Give an error its cause, if there is one."""
    if cause is not None:
        error.__cause__ = cause
    return error


def unsent(out: Outgoing, error: NotSent, address: Address | None, cause: BaseException | None = None) -> SendError:
    """The error of a sending that is not with the peer; one that went out before may have been handled then."""
    ends: SendError = error
    if out.kind & _RETRY:
        if isinstance(error, Expired):
            ends = ConfirmTimeout(out.message, out.timeout, address)
        else:
            ends = NotConfirmed(out.message, error.reason, address)
    because(ends, cause)
    return ends


def too_large(out: Outgoing, limit: int, address: Address | None) -> MessageTooLarge | NotConfirmed:
    """The error of a sending that the other end does not take; one that went out before may have been handled then."""
    error = MessageTooLarge("message", out.size, limit)
    if not out.kind & _RETRY:
        return error
    again = NotConfirmed(out.message, f"when it was sent again, {error}", address)
    again.__cause__ = error
    return again


def of_refusal(out: Outgoing, error: SendError, address: Address | None) -> SendError:
    """The error of a sending that an announced peer refused with `error`, which may not be all that is known."""
    if isinstance(error, Withdrawn):
        # Its time was over there, or here; which of the two clocks was first is all the same.
        expired = Expired(out.message, out.timeout, "waiting in the peer's inbox", address)
        return unsent(out, expired, address, error if out.kind & _RETRY else None)
    verdict = error
    if out.kind & _RETRY and not error.sent:
        # This one was not handled; what went out before it may have been.
        verdict = NotConfirmed(out.message, f"when it was sent again, {error}", address)
    elif isinstance(error, Cancelled) and out.stage == Stage.WITHDRAWING:
        # The work was cancelled because the time was over: that is what failed.
        verdict = ConfirmTimeout(out.message, out.timeout, address)
    if verdict is not error:
        verdict.__cause__ = error
    return verdict
