"""Errors of sendings: what is known decides whether a failed message counts as sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redpoll.address import Address
from redpoll.errors import (
    Cancelled,
    ConfirmTimeout,
    Expired,
    MessageTooLarge,
    NotConfirmed,
    NotSent,
    RedpollError,
    SendError,
    Withdrawn,
)
from redpoll.wire.frames import RETRY
from redpoll.wire.outgoing import Outgoing, Stage

__all__ = ["not_sent_errors", "refusal_error", "too_large_error", "unsent_error", "with_cause"]


def with_cause(error: Any, cause: BaseException | None) -> Any:
    """Set the cause of an error, if there is one."""
    if cause is not None:
        error.__cause__ = cause
    return error


def not_sent_errors(messages: Sequence[Outgoing], error: RedpollError, address: Address | None) -> list[NotSent]:
    """Return the errors of sendings that failed because of `error`, with its hint."""
    if not messages:
        return []
    reason = error._reason(address)
    failures = [NotSent(out.message, reason, address) for out in messages]
    for failure in failures:
        failure.hint = error.hint
    return failures


def unsent_error(
    out: Outgoing, error: NotSent, address: Address | None, cause: BaseException | None = None
) -> SendError:
    """Return the error of a sending that the peer does not have; if it was sent before, it may have been handled then."""
    ends: SendError = error
    if out.kind & RETRY:
        if isinstance(error, Expired):
            ends = ConfirmTimeout(out.message, out.timeout, address)
        else:
            ends = NotConfirmed(out.message, error.reason, address)
    with_cause(ends, cause)
    return ends


def too_large_error(out: Outgoing, limit: int, address: Address | None) -> MessageTooLarge | NotConfirmed:
    """Return the error of a sending too large for the other end; if it was sent before, it may have been handled then."""
    error = MessageTooLarge("message", out.size, limit)
    if not out.kind & RETRY:
        return error
    again = NotConfirmed(out.message, f"the resend failed: {error._reason(address)}", address)
    again.__cause__ = error
    return again


def refusal_error(out: Outgoing, error: SendError, address: Address | None) -> SendError:
    """Return the error of a sending that an announced peer refused with `error`, given what else is known."""
    if isinstance(error, Withdrawn):
        # It timed out there, or here; it does not matter on which clock first.
        expired = Expired(out.message, out.timeout, "waiting in the peer's inbox", address)
        return unsent_error(out, expired, address, error if out.kind & RETRY else None)
    verdict = error
    if out.kind & RETRY and not error.sent:
        # This one was not handled; an earlier one may have been.
        verdict = NotConfirmed(out.message, f"the resend failed: {error._reason(address)}", address)
    elif isinstance(error, Cancelled) and out.stage == Stage.WITHDRAWING:
        # The work was cancelled because of the timeout, so that is the reason.
        verdict = ConfirmTimeout(out.message, out.timeout, address)
    if verdict is not error:
        verdict.__cause__ = error
    return verdict
