"""Every error redpoll raises, by who must act.

    RedpollError
      UsageError (ValueError)              you: a bad argument
        ConfigError                        a bad option, named
        MessageTooLarge                    a part of a message is over its limit
      Closed                               you: it was stopped, or never started
      LinkError (ConnectionError)          the network or the peer
        DialFailed                         no link could be made
        PeerLost                           the link, or the node behind it, is gone
          Fenced                           another run of this node took its place there
        ProtocolError                      the peer sent what the wire format forbids
        TLSError                           no agreement on encryption or on who is who
        NotAuthorized                      one end does not let the other one in
      SendError                            delivery of one message; says whether it was sent
        NotSent                            safe to send again
          QueueFull                        a bound of the send queue was reached
          Expired (TimeoutError)           its time ended before it was sent or begun
        NotConfirmed                       may have been handled
          ConfirmTimeout (TimeoutError)    its time ended first
        Refused                            the peer says the work was not done
          HandlerFailed                    its handler raised
          Undecodable                      its serializer could not read the data
          Abandoned                        its consumer left without ending it
          Cancelled                        its handler was cancelled
          NoHandler                        nobody there takes messages; not begun
          Busy                             a bound was reached there; not begun
          ShuttingDown                     it is stopping; not begun
          Withdrawn                        expired or withdrawn in its inbox; not begun
        BatchError                         the first failure of send_many
      NoAnswer (TimeoutError)              the request was done, but no answer came
      EncodeError                          data: the serializer cannot carry the value
      DecodeError                          data: the bytes are not what the serializer reads
      RemoteError                          the bus: what the remote function raised
      NoRoute                              the bus: nobody serves that name
      TaskRejected                         the bus: a worker gave the task up
      WiringError                          exchanges and queues, and their names
        UnknownName (LookupError)          nobody has that name, or nobody said so in time
        NameTaken                          somebody else has it, or it is made differently
        ScopeError (UsageError)            that name cannot be had, or seen, from here
        DirectoryUnavailable (LinkError)   the directory does not answer

Fields come first and the text is built from them. A ``hint`` names the remedy where there is one and stands in brackets
behind the text. All of them can be pickled and copied; the cause, as always in Python, does not travel along.
"""

# ruff: noqa: N818 - most of these names say what happened; "Error" behind them would add nothing.

from __future__ import annotations

import reprlib
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

    from redpoll.address import Address

__all__ = [
    "REFUSALS",
    "Abandoned",
    "BatchError",
    "Busy",
    "Cancelled",
    "Closed",
    "ConfigError",
    "ConfirmTimeout",
    "DecodeError",
    "DialFailed",
    "DirectoryUnavailable",
    "EncodeError",
    "Expired",
    "Fenced",
    "HandlerFailed",
    "LinkError",
    "MessageTooLarge",
    "NameTaken",
    "NoAnswer",
    "NoHandler",
    "NoRoute",
    "NotAuthorized",
    "NotConfirmed",
    "NotSent",
    "PeerLost",
    "ProtocolError",
    "QueueFull",
    "RedpollError",
    "Refused",
    "RemoteError",
    "ScopeError",
    "SendError",
    "ShuttingDown",
    "TLSError",
    "TaskRejected",
    "Undecodable",
    "UnknownName",
    "UsageError",
    "WiringError",
    "Withdrawn",
]

_E = TypeVar("_E", bound="RedpollError")


class RedpollError(Exception):
    """The root of all errors redpoll raises.

    Attributes:
        hint: The remedy in a few words, or None where there is none to name.
    """

    hint: str | None = None

    def __init__(self, *fields: object, hint: str | None = None) -> None:
        """Keep the fields; subclasses say which they are."""
        # Not super().__init__(): OSError's would read two fields as errno and strerror, and drop a third.
        self.args = fields
        if hint is not None:
            self.hint = hint

    def _text(self) -> str:
        return ", ".join(map(str, self.args)) or type(self).__name__

    def __str__(self) -> str:
        """The text, and the hint in brackets."""
        return self._text() if self.hint is None else f"{self._text()} ({self.hint})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild from the fields, without calling a constructor again."""
        return _rebuild, (type(self), self.args), self.__dict__


def _rebuild(kind: type[_E], fields: tuple[object, ...]) -> _E:
    error = kind.__new__(kind)
    error.args = fields
    return error


def _shown(text: str) -> str:
    # A peer wrote it: line breaks and terminal codes have no business in a log.
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _value(value: object) -> str:
    try:
        return reprlib.repr(value)
    except ValueError:  # an int with more digits than Python writes out
        return f"<{type(value).__name__}>"


def _within(timeout: float | None) -> str:
    return "in time" if timeout is None else f"in {timeout:g} s"


def _to(address: object) -> str:
    return "" if address is None else f" to {address}"


def _at(address: object) -> str:
    return "" if address is None else f" with {address}"


class UsageError(RedpollError, ValueError):
    """An argument that cannot be meant, or a call that makes no sense here.

    Attributes:
        text: What is wrong.
    """

    def __init__(self, text: str, hint: str | None = None) -> None:
        super().__init__(text, hint=hint)
        self.text = text

    def _text(self) -> str:
        return self.text


class ConfigError(UsageError):
    """An option has a value it cannot have.

    Attributes:
        field: Name of the option.
        value: What it was given.
        problem: What is wrong with that.
    """

    def __init__(self, field: str, value: object, problem: str, hint: str | None = None) -> None:
        super().__init__(f"{field}={_value(value)}: {problem}", hint)
        self.args = (field, value, problem)
        self.field = field
        self.value = value
        self.problem = problem


class MessageTooLarge(UsageError):
    """A part of a message is over its limit; nothing was sent.

    Attributes:
        what: The part: "message", "header", "metadata".
        size: Its size in bytes.
        limit: The most it may have, in bytes.
    """

    _HINTS: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "message": "split it, or raise max_message_size on both nodes",
            "header": "carry it in the data",
        }
    )

    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(f"{what} of {size} bytes is over the limit of {limit}", self._HINTS.get(what))
        self.args = (what, size, limit)
        self.what = what
        self.size = size
        self.limit = limit


class Closed(RedpollError):
    """It is not running: stopped, or not started yet.

    Attributes:
        what: What is closed, for example "node".
    """

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def _text(self) -> str:
        return f"the {self.what} is not running"


class LinkError(RedpollError, ConnectionError):
    """A link could not be made or did not last.

    Attributes:
        address: The other end, where it is known.
    """

    address: Address | str | None = None


class DialFailed(LinkError):
    """No link could be made.

    Attributes:
        reason: Why, as the system or the peer said it.
    """

    def __init__(self, address: Address | str | None, reason: str) -> None:
        super().__init__(address, reason)
        self.address = address
        self.reason = reason

    def _text(self) -> str:
        return f"cannot connect{_to(self.address)}: {self.reason}"


class PeerLost(LinkError):
    """The link to a peer ended, or the node that was there is gone.

    Attributes:
        reason: Why, as far as it can be told from here.
    """

    def __init__(self, address: Address | str | None, reason: str) -> None:
        super().__init__(address, reason)
        self.address = address
        self.reason = reason

    def _text(self) -> str:
        return f"lost the peer{'' if self.address is None else f' {self.address}'}: {self.reason}"


class Fenced(PeerLost):
    """Another run of this node, with its identity and secret, took its place at a peer, which lets this one in no more."""

    def __init__(self, address: Address | str | None) -> None:
        super().__init__(address, "another run of this node took its place there")
        self.args = (address,)
        self.hint = "give each node that runs an identity of its own"


class ProtocolError(LinkError):
    """The peer sent what the wire format forbids; its link was closed.

    Attributes:
        detail: What was wrong.
    """

    def __init__(self, detail: str, address: Address | str | None = None) -> None:
        super().__init__(detail, address)
        self.detail = detail
        self.address = address

    def _text(self) -> str:
        return f"protocol error{_at(self.address)}: {self.detail}"


class TLSError(LinkError):
    """Both ends could not agree on encryption or on who is who.

    Attributes:
        detail: What was wrong.
    """

    def __init__(self, detail: str, address: Address | str | None = None, hint: str | None = None) -> None:
        super().__init__(detail, address, hint=hint)
        self.detail = detail
        self.address = address

    def _text(self) -> str:
        return f"TLS failed{_at(self.address)}: {self.detail}"


class NotAuthorized(LinkError):
    """One end of a link does not let the other one in: what its `Config.authorize` said.

    Attributes:
        detail: Which end it was, and why as far as that is known here.
    """

    def __init__(self, detail: str, address: Address | str | None = None, hint: str | None = None) -> None:
        super().__init__(detail, address, hint=hint)
        self.detail = detail
        self.address = address

    def _text(self) -> str:
        return f"not authorized{_at(self.address)}: {self.detail}"


class SendError(RedpollError):
    """A message was not done, or is not known to be done.

    Attributes:
        message: The Message that was to be sent.
        sent: Whether it may have been handled. False: it was not begun, so it is safe to send it again.
        address: Where it was to go, where that is known.
    """

    message: Any
    sent: bool = False
    address: Address | str | None = None


class NotSent(SendError):
    """The message was not sent: it is safe to send it again.

    Attributes:
        reason: Why.
    """

    def __init__(self, message: Any, reason: str, address: Address | str | None = None) -> None:
        super().__init__(message, reason, address)
        self.message = message
        self.reason = reason
        self.address = address

    def _text(self) -> str:
        return f"message{_to(self.address)} was not sent: {self.reason}"


class QueueFull(NotSent):
    """The send queue of that peer is at its bound, or so many requests to it are done and not answered.

    Attributes:
        limit: The bound.
        unit: "messages", "bytes" or "requests".
    """

    def __init__(self, message: Any, limit: int, unit: str, address: Address | str | None = None) -> None:
        super().__init__(message, f"the send queue holds its limit of {limit} {unit}", address)
        self.args = (message, limit, unit, address)
        self.limit = limit
        self.unit = unit
        self.hint = "await each send, await node.ready(address), or use send_many"


class Expired(NotSent, TimeoutError):
    """The time of the message ended before it was sent, or before the peer began it.

    Attributes:
        timeout: The time it had, in seconds; None where a deadline was given from elsewhere.
        stage: Where it still was, for example "queued" or "connecting".
    """

    def __init__(self, message: Any, timeout: float | None, stage: str, address: Address | str | None = None) -> None:
        super().__init__(
            message,
            f"still {stage} when its time ended" if timeout is None else f"still {stage} after {timeout:g} s",
            address,
        )
        self.args = (message, timeout, stage, address)
        self.timeout = timeout
        self.stage = stage


class NotConfirmed(SendError):
    """The message was sent, and whether it was handled is not known.

    Attributes:
        reason: Why.
    """

    sent = True
    hint = "it may have been handled; send with retry=N to have it handled once by a redpoll peer"

    def __init__(self, message: Any, reason: str, address: Address | str | None = None) -> None:
        super().__init__(message, reason, address)
        self.message = message
        self.reason = reason
        self.address = address

    def _text(self) -> str:
        return f"message{_to(self.address)} was sent, but not confirmed: {self.reason}"


class ConfirmTimeout(NotConfirmed, TimeoutError):
    """The message was sent, and its time ended before it was confirmed.

    Attributes:
        timeout: The time it had, in seconds; None where a deadline was given from elsewhere.
    """

    def __init__(self, message: Any, timeout: float | None, address: Address | str | None = None) -> None:
        super().__init__(message, f"nothing came back {_within(timeout)}", address)
        self.args = (message, timeout, address)
        self.timeout = timeout


class Refused(SendError):
    """The peer says that the work was not done.

    The subclass says why; `Refused` itself stands for a handler that called ``msg.refuse(reason)``, and for codes of
    a newer peer that this release does not know.

    Attributes:
        text: What the peer said, at most a short line; may be empty.
        code: The reason's number on the wire, see `REFUSALS`.
    """

    sent = True
    code: ClassVar[int] = 0

    _WHY: ClassVar[str] = ""

    def __init__(self, message: Any, text: str, address: Address | str | None = None) -> None:
        super().__init__(message, text, address)
        self.message = message
        self.text = text
        self.address = address

    def _text(self) -> str:
        return ": ".join(filter(None, (f"message{_to(self.address)} was refused", self._WHY, _shown(self.text))))


class HandlerFailed(Refused):
    """The peer's handler raised an exception."""

    code = 1
    _WHY = "the handler failed"


class Undecodable(Refused):
    """The peer's serializer could not read the data."""

    code = 2
    _WHY = "the peer cannot decode it"
    hint = "both nodes need the same serializer"


class Abandoned(Refused):
    """The peer's consumer left its loop, or dropped the message, without ending it."""

    code = 3
    _WHY = "abandoned by its consumer"


class Cancelled(Refused):
    """The peer's handler was cancelled while it worked on the message."""

    code = 4
    _WHY = "the handler was cancelled"


class NoHandler(Refused):
    """The peer has neither a handler nor a consumer; the message was not begun."""

    sent = False
    code = 5
    _WHY = "nobody takes messages there"
    hint = "give that node a handler, or pull from it within its unclaimed_timeout"


class Busy(Refused):
    """The peer is at a bound of its own; the message was not begun."""

    sent = False
    code = 6
    _WHY = "the peer is busy"
    hint = "send it again later"


class ShuttingDown(Refused):
    """The peer is stopping; the message was not begun."""

    sent = False
    code = 7
    _WHY = "the peer is shutting down"


class Withdrawn(Refused):
    """The message was withdrawn, or expired, in the peer's inbox; it was not begun."""

    sent = False
    code = 8
    _WHY = "withdrawn before it was begun"


REFUSALS: Mapping[int, type[Refused]] = MappingProxyType(
    {
        kind.code: kind
        for kind in (
            Refused,
            HandlerFailed,
            Undecodable,
            Abandoned,
            Cancelled,
            NoHandler,
            Busy,
            ShuttingDown,
            Withdrawn,
        )
    }
)
"""The class of each refusal code on the wire; a code that is not in it is a plain `Refused`."""


class BatchError(SendError):
    """The first failure of `send_many`.

    `message`, `sent` and `address` are those of `error`; where that is no `SendError` (a bad argument, a value that
    cannot be encoded) the item was not sent.

    Attributes:
        index: Which item failed, counted from 0 in the order of the iterable.
        completed: How many items succeeded, before and after it.
        error: What its send raised.
    """

    def __init__(self, index: int, completed: int, error: BaseException) -> None:
        super().__init__(index, completed, error)
        self.index = index
        self.completed = completed
        self.error = error
        self.message = getattr(error, "message", None)
        self.sent = bool(getattr(error, "sent", False))
        self.address = getattr(error, "address", None)

    def _text(self) -> str:
        return f"item {self.index} failed, {self.completed} succeeded: {self.error}"


class NoAnswer(RedpollError, TimeoutError):
    """The request was done, but no answer came in time.

    Attributes:
        message: The request.
        timeout: The time it had, in seconds; None where a deadline was given from elsewhere.
        address: Where it went, where that is known.
    """

    def __init__(self, message: Any, timeout: float | None, address: Address | str | None = None) -> None:
        super().__init__(message, timeout, address)
        self.message = message
        self.timeout = timeout
        self.address = address

    def _text(self) -> str:
        return f"request{_to(self.address)} was done, but no answer came {_within(self.timeout)}"


class EncodeError(RedpollError):
    """The serializer cannot carry the value; nothing was sent.

    Attributes:
        serializer: Name of the serializer.
        problem: What is wrong.
    """

    def __init__(self, serializer: str, problem: str, hint: str | None = None) -> None:
        super().__init__(serializer, problem, hint=hint)
        self.serializer = serializer
        self.problem = problem

    def _text(self) -> str:
        return f"{self.serializer} cannot encode: {self.problem}"


class DecodeError(RedpollError):
    """The bytes are not what the serializer reads.

    Attributes:
        serializer: Name of the serializer.
        problem: What is wrong.
    """

    def __init__(self, serializer: str, problem: str, hint: str | None = None) -> None:
        super().__init__(serializer, problem, hint=hint)
        self.serializer = serializer
        self.problem = problem

    def _text(self) -> str:
        return f"{self.serializer} cannot decode: {_shown(self.problem)}"


class RemoteError(RedpollError):
    """What a remote function raised.

    Attributes:
        kind: Name of the exception's class there.
        text: Its text.
        traceback: Its traceback as text, where the remote side sends it.
    """

    def __init__(self, kind: str, text: str, traceback: str | None = None) -> None:
        super().__init__(kind, text, traceback)
        self.kind = kind
        self.text = text
        self.traceback = traceback

    def _text(self) -> str:
        return f"remote {_shown(self.kind)}: {_shown(self.text)}"


class NoRoute(RedpollError):
    """Nobody serves that name.

    Attributes:
        target: The name: a queue, a topic, a server.
    """

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.target = target

    def _text(self) -> str:
        return f"no route to {self.target!r}"


class TaskRejected(RedpollError):
    """A worker gave the task up.

    Attributes:
        task: Identity of the task.
        reason: What the worker said.
    """

    def __init__(self, task: str, reason: str) -> None:
        super().__init__(task, reason)
        self.task = task
        self.reason = reason

    def _text(self) -> str:
        return f"task {self.task} was rejected: {_shown(self.reason)}"


class WiringError(RedpollError):
    """Exchanges and queues could not be made or wired as was asked."""


class UnknownName(WiringError, LookupError):
    """Nobody has an exchange or a queue of that name, as far as can be seen from here.

    Attributes:
        kind: "exchange" or "queue".
        name: Its name.
        waited: Seconds that were waited for it to appear.
    """

    def __init__(self, kind: str, name: str, waited: float = 0.0, hint: str | None = None) -> None:
        super().__init__(kind, name, waited, hint=hint)
        self.kind = kind
        self.name = name
        self.waited = waited

    def _text(self) -> str:
        return f"there is no {self.kind} {self.name!r}" + (f" after {self.waited:g} s" if self.waited else "")


class NameTaken(WiringError):
    """That name is somebody else's, or was given to something that is made differently.

    Attributes:
        kind: "exchange" or "queue".
        name: Its name.
        owner: Who has it, as far as is known.
    """

    def __init__(self, kind: str, name: str, owner: str, hint: str | None = None) -> None:
        super().__init__(kind, name, owner, hint=hint)
        self.kind = kind
        self.name = name
        self.owner = owner

    def _text(self) -> str:
        return f"the {self.kind} name {self.name!r} is taken: {_shown(self.owner)}"


class ScopeError(WiringError, UsageError):
    """A name with that scope cannot be had, or cannot be seen, from here."""


class DirectoryUnavailable(WiringError, LinkError):
    """The directory does not answer.

    Attributes:
        address: Where it should be.
        reason: Why, as far as it can be told from here.
    """

    hint = "start one with: redpoll directory"

    def __init__(self, address: Address | str | None, reason: str) -> None:
        super().__init__(address, reason)
        self.address = address
        self.reason = reason

    def _text(self) -> str:
        return f"the directory{'' if self.address is None else f' {self.address}'} does not answer: {self.reason}"
