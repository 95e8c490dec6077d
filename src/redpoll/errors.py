"""The errors that redpoll raises, grouped by who has to act.

    RedpollError
      UsageError (ValueError)              you: an invalid argument or call
        ConfigError                        an option has an invalid value
        MessageTooLarge                    a part of a message is over its limit
      Closed                               you: it was stopped, or never started
      LinkError (ConnectionError)          the network or the peer
        DialFailed                         no link could be made
        PeerLost                           the link, or the node behind it, is gone
          Fenced                           another run of this node took over there
        ProtocolError                      the peer violated the wire format
          OtherProtocol                    the server speaks another protocol, and is not a node
        TLSError                           no agreement on encryption or on identities
        NotAuthorized                      one end rejects the other
      SendError                            delivery of one message; says whether it was sent
        NotSent                            safe to send again
          QueueFull                        a bound of the send queue was reached
          Expired (TimeoutError)           it expired before it was sent or begun
        NotConfirmed                       may have been handled
          ConfirmTimeout (TimeoutError)    it expired before it was confirmed
        Refused                            the peer reports that the work was not done
          HandlerFailed                    its handler raised
          Undecodable                      its serializer could not read the data
          Abandoned                        its consumer left without ending it
          Cancelled                        its handler was cancelled
          NoHandler                        the peer has no handler or consumer; not begun
          Busy                             a bound of the peer was reached; not begun
          ShuttingDown                     the peer is stopping; not begun
          Withdrawn                        expired or withdrawn in its inbox; not begun
        BatchError                         the first failure of send_many
      NoAnswer (TimeoutError)              the request was done, but no answer arrived
        CallTimeout (BusError)             a call of the bus was not answered in time
      EncodeError                          data: the serializer cannot encode the value
      DecodeError                          data: the serializer cannot decode the bytes
      BusError                             tasks, calls, broadcasts and notifications
        RemoteError                        the remote function raised
        NoRoute                            nothing serves that name
        QueueEmpty                         no task arrived in time
        SpecConflict                       the queue exists with other settings
        Unsupported                        the engine does not support the operation
        BadPayload                         the receiver cannot read the payload
        PayloadTooLarge (ValueError)       a body is over the limit of the engine
          ResultTooLarge                   the result of a task is
        StaleHub                           the hub is older than one that was seen before
        StoreError                         the folder of a hub cannot be used
        TaskError                          the outcome of a task, other than a result
          TaskRejected                     a worker rejected the task
          TaskCancelled                    it was cancelled
          TaskExpired (TimeoutError)       it expired before it was done
          TimeLimit (TimeoutError)         its handler exceeded the time limit
          DeadLettered                     it failed too often, or was rejected for good; it is kept
          UnknownTask (LookupError)        there is no task with that id
          ResultExpired (LookupError)      its outcome is not stored any more
      WiringError                          exchanges and queues, and their names
        UnknownName (LookupError)          no object has that name, or none was found in time
        NameTaken                          another owner has it, or it exists with other settings
        ScopeError (UsageError)            the name cannot be used, or seen, from here
        DirectoryUnavailable (LinkError)   the directory does not answer

Fields come first and the text is built from them. A ``hint`` names the remedy if there is one, and follows the text in
parentheses. All errors can be pickled and copied; the cause, as always in Python, is not included.
"""

# ruff: noqa: N818 - most of these names say what happened; "Error" behind them would add nothing.

from __future__ import annotations

import reprlib
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from redpoll.address import Address
from redpoll.error_root import RedpollError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "REFUSALS",
    "Abandoned",
    "BadPayload",
    "BatchError",
    "BusError",
    "Busy",
    "CallTimeout",
    "Cancelled",
    "Closed",
    "ConfigError",
    "ConfirmTimeout",
    "DeadLettered",
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
    "OtherProtocol",
    "PayloadTooLarge",
    "PeerLost",
    "ProtocolError",
    "QueueEmpty",
    "QueueFull",
    "RedpollError",
    "Refused",
    "RemoteError",
    "ResultExpired",
    "ResultTooLarge",
    "ScopeError",
    "SendError",
    "ShuttingDown",
    "SpecConflict",
    "StaleHub",
    "StoreError",
    "TLSError",
    "TaskCancelled",
    "TaskError",
    "TaskExpired",
    "TaskRejected",
    "TimeLimit",
    "Undecodable",
    "UnknownName",
    "UnknownTask",
    "Unsupported",
    "UsageError",
    "WiringError",
    "Withdrawn",
]


def _shown(text: str) -> str:
    # A peer wrote it: keep line breaks and terminal codes out of logs.
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _value(value: object) -> str:
    try:
        return reprlib.repr(value)
    except ValueError:  # an int with more digits than Python formats
        return f"<{type(value).__name__}>"


def _within(timeout: float | None) -> str:
    return "in time" if timeout is None else f"within {timeout:g} s"


def _to(address: object) -> str:
    return "" if address is None else f" to {address}"


def _at(address: object) -> str:
    return "" if address is None else f" with {address}"


def _at_address(address: object) -> str:
    return "" if address is None else f" at {address}"


class ConfigError(UsageError):
    """An option has an invalid value.

    Attributes:
        field: Name of the option.
        value: The value.
        problem: The problem with the value.
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
        limit: Its maximum size in bytes.
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
    """The object is not running: stopped, or not started yet.

    Attributes:
        what: The object, for example "node".
    """

    def __init__(self, what: str, hint: str | None = None) -> None:
        super().__init__(what, hint=hint)
        self.what = what

    def _text(self) -> str:
        return f"the {self.what} is not running"


class LinkError(RedpollError, ConnectionError):
    """A link could not be made or was lost.

    Attributes:
        address: The remote address, if it is known.
    """

    address: Address | str | None = None


class DialFailed(LinkError):
    """No link could be made.

    Attributes:
        reason: The reason, as reported by the system or the peer.
    """

    def __init__(self, address: Address | str | None, reason: str) -> None:
        super().__init__(address, reason)
        self.address = address
        self.reason = reason

    def _text(self) -> str:
        return f"cannot connect{_to(self.address)}: {self.reason}"


class PeerLost(LinkError):
    """The link to a peer ended, or its node is gone.

    Attributes:
        reason: The reason, as far as it is known here.
    """

    def __init__(self, address: Address | str | None, reason: str) -> None:
        super().__init__(address, reason)
        self.address = address
        self.reason = reason

    def _text(self) -> str:
        return f"lost the peer{'' if self.address is None else f' {self.address}'}: {self.reason}"


class Fenced(PeerLost):
    """Another run of this node, with its identity and secret, took over at a peer, which now rejects this run."""

    def __init__(self, address: Address | str | None) -> None:
        super().__init__(address, "another run of this node took over there")
        self.args = (address,)
        self.hint = "give each running node its own identity"


class ProtocolError(LinkError):
    """The peer violated the wire format; its link was closed.

    Attributes:
        detail: The violation.
    """

    def __init__(self, detail: str, address: Address | str | None = None) -> None:
        super().__init__(detail, address)
        self.detail = detail
        self.address = address

    def _text(self) -> str:
        return f"protocol error{_at(self.address)}: {self.detail}"


class OtherProtocol(ProtocolError):
    """The server at an address speaks another protocol, such as HTTP: it is neither a redpoll nor a libchirp node."""

    hint = "is the address right?"


class TLSError(LinkError):
    """The ends could not agree on encryption or on their identities.

    Attributes:
        detail: The problem.
    """

    def __init__(self, detail: str, address: Address | str | None = None, hint: str | None = None) -> None:
        super().__init__(detail, address, hint=hint)
        self.detail = detail
        self.address = address

    def _text(self) -> str:
        return f"TLS failed{_at(self.address)}: {self.detail}"


class NotAuthorized(LinkError):
    """One end of a link rejects the other: the result of its `Config.authorize`.

    Attributes:
        detail: Which end it was, and why, as far as that is known here.
    """

    def __init__(self, detail: str, address: Address | str | None = None, hint: str | None = None) -> None:
        super().__init__(detail, address, hint=hint)
        self.detail = detail
        self.address = address

    def _text(self) -> str:
        return f"not authorized{_at(self.address)}: {self.detail}"


class SendError(RedpollError):
    """A message failed, or its outcome is not known.

    Attributes:
        message: The Message that was to be sent.
        sent: Whether it may have been handled. False: it was not begun, so it is safe to send it again.
        address: The destination, if it is known.
    """

    message: Any
    sent: bool = False
    address: Address | str | None = None


class NotSent(SendError):
    """The message was not sent: it is safe to send it again.

    Attributes:
        reason: The reason.
    """

    def __init__(self, message: Any, reason: str, address: Address | str | None = None) -> None:
        super().__init__(message, reason, address)
        self.message = message
        self.reason = reason
        self.address = address

    def _text(self) -> str:
        return f"message{_to(self.address)} was not sent: {self.reason}"


class QueueFull(NotSent):
    """A bound was reached: of the send queue to a peer, of its unanswered requests, or of a task queue.

    Attributes:
        limit: The bound.
        unit: "messages", "bytes", "requests" or "tasks".
        queue: Name of the task queue; None for a send queue.
    """

    def __init__(
        self,
        message: Any,
        limit: float,
        unit: str,
        address: Address | str | None = None,
        queue: str | None = None,
    ) -> None:
        what = "the send queue" if queue is None else f"the queue {queue!r}"
        super().__init__(message, f"{what} is full: the limit is {limit} {unit}", address)
        self.args = (message, limit, unit, address) if queue is None else (message, limit, unit, address, queue)
        self.limit = limit
        self.unit = unit
        self.queue = queue
        self.hint = (
            "await each send, await node.ready(address), or use send_many"
            if queue is None
            else "start more workers, wait with timeout=, or raise the limit of the queue"
        )


class Expired(NotSent, TimeoutError):
    """The message expired before it was sent, or before the peer began it.

    Attributes:
        timeout: The timeout in seconds; None if the deadline was inherited.
        stage: Where it still was, for example "waiting to be sent".
    """

    _HINTS: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "waiting in the peer's inbox": "the remote handler is slower than the timeout or blocks its event loop, or no"
            " consumer takes messages there",
        }
    )

    def __init__(self, message: Any, timeout: float | None, stage: str, address: Address | str | None = None) -> None:
        super().__init__(
            message,
            f"still {stage} when its deadline passed" if timeout is None else f"still {stage} after {timeout:g} s",
            address,
        )
        self.args = (message, timeout, stage, address)
        self.hint = self._HINTS.get(stage)
        self.timeout = timeout
        self.stage = stage

    def _text(self) -> str:
        text, cause = super()._text(), self.__cause__
        # Why there was no link.
        return f"{text}: {cause._reason(self.address)}" if isinstance(cause, RedpollError) else text


class NotConfirmed(SendError):
    """The message was sent, and it is not known whether it was handled.

    Attributes:
        reason: The reason.
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
    """The message was sent, and expired before it was confirmed.

    Attributes:
        timeout: The timeout in seconds; None if the deadline was inherited.
    """

    hint = "it may have been handled or still run: the remote handler is slow, or blocks its event loop, which its node logs"

    def __init__(self, message: Any, timeout: float | None, address: Address | str | None = None) -> None:
        super().__init__(message, f"no acknowledgement {_within(timeout)}", address)
        self.args = (message, timeout, address)
        self.timeout = timeout


class Refused(SendError):
    """The peer reports that the work was not done.

    The subclass says why; `Refused` itself stands for a handler that called ``msg.refuse(reason)``, and for codes of
    a newer peer that this release does not know.

    Attributes:
        text: The reason that the peer sent, at most a short line; may be empty.
        code: The number of the reason on the wire, see `REFUSALS`.
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
    _WHY = "the peer cannot decode the data"
    hint = "both nodes need the same serializer"


class Abandoned(Refused):
    """The peer's consumer left its loop, or dropped the message, without ending it."""

    code = 3
    _WHY = "abandoned by its consumer"


class Cancelled(Refused):
    """The peer's handler was cancelled while it handled the message."""

    code = 4
    _WHY = "the handler was cancelled"


class NoHandler(Refused):
    """The peer has neither a handler nor a consumer; the message was not begun."""

    sent = False
    code = 5
    _WHY = "unclaimed"
    hint = "give that node a handler, or pull from it within its unclaimed_timeout"


class Busy(Refused):
    """The peer is at one of its bounds; the message was not begun."""

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
"""The class of each refusal code on the wire; other codes are a plain `Refused`."""


class BatchError(SendError):
    """The first failure of `send_many`.

    `message`, `sent` and `address` are those of `error`; if that is not a `SendError` (an invalid argument, a value
    that cannot be encoded) the item was not sent.

    Attributes:
        index: The index of the failed item, counted from 0 in the order of the iterable.
        completed: The number of items that succeeded, before and after it.
        error: The exception of its send.
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
    """The request was done, but no answer arrived in time, or there will be none.

    Attributes:
        message: The request.
        timeout: The timeout in seconds; None if the deadline was inherited.
        address: The destination, if it is known.
        reason: The reason, as far as it is known here.
    """

    def __init__(
        self,
        message: Any,
        timeout: float | None,
        address: Address | str | None = None,
        reason: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, timeout, address, hint=hint)
        self.message = message
        self.timeout = timeout
        self.address = address
        self.reason = f"no answer arrived {_within(timeout)}" if reason is None else reason

    def _text(self) -> str:
        return f"request{_to(self.address)} was done, but {self.reason}"


class EncodeError(RedpollError):
    """The serializer cannot encode the value; nothing was sent.

    Attributes:
        serializer: Name of the serializer.
        problem: The problem.
    """

    def __init__(self, serializer: str, problem: str, hint: str | None = None) -> None:
        super().__init__(serializer, problem, hint=hint)
        self.serializer = serializer
        self.problem = problem

    def _text(self) -> str:
        return f"{self.serializer} cannot encode: {self.problem}"


class DecodeError(RedpollError):
    """The serializer cannot decode the bytes.

    Attributes:
        serializer: Name of the serializer.
        problem: The problem.
    """

    def __init__(self, serializer: str, problem: str, hint: str | None = None) -> None:
        super().__init__(serializer, problem, hint=hint)
        self.serializer = serializer
        self.problem = problem

    def _text(self) -> str:
        return f"{self.serializer} cannot decode: {_shown(self.problem)}"


class BusError(RedpollError):
    """An operation on the bus failed: the root of the errors of tasks, calls, broadcasts and notifications."""


class CallTimeout(NoAnswer, BusError):
    """A call was not answered in time; it is not known whether it was begun.

    Attributes:
        message: The call.
        timeout: The timeout in seconds; None if something else ended it, which `reason` says.
        reason: The reason, if there is more to say.
    """

    def __init__(self, message: str, timeout: float | None, reason: str = "") -> None:
        super().__init__(message, timeout, None, reason)
        self.args = (message, timeout, reason)

    def _text(self) -> str:
        return f"no answer from {self.message} {_within(self.timeout)}" + (f": {self.reason}" if self.reason else "")


class RemoteError(BusError):
    """The remote function raised an exception.

    Attributes:
        kind: Name of the exception's class.
        text: Its text.
        traceback: Its traceback as text, if the remote side sent it.
    """

    def __init__(self, kind: str, text: str, traceback: str | None = None) -> None:
        super().__init__(kind, text, traceback)
        self.kind = kind
        self.text = text
        self.traceback = traceback

    def _text(self) -> str:
        return f"remote {_shown(self.kind)}: {_shown(self.text)}"


class NoRoute(BusError):
    """Nothing serves that name: the queue does not exist, or has no consumer where one is needed; nothing was sent.

    Attributes:
        target: The name: a queue, a subject, a server.
    """

    def __init__(self, target: str, hint: str | None = None) -> None:
        super().__init__(target, hint=hint)
        self.target = target

    def _text(self) -> str:
        return f"no route to {self.target!r}"


class QueueEmpty(BusError):
    """No task arrived in time.

    Attributes:
        queue: Name of the queue.
        timeout: The timeout in seconds.
    """

    def __init__(self, queue: str, timeout: float | None) -> None:
        super().__init__(queue, timeout)
        self.queue = queue
        self.timeout = timeout

    def _text(self) -> str:
        return f"no task in queue {self.queue!r}" + (f" after {self.timeout:g} s" if self.timeout else "")


class SpecConflict(BusError):
    """The queue exists with another setting.

    Attributes:
        queue: Name of the queue.
        field: Name of the first setting that differs.
        existing: The existing value.
        asked: The requested value.
    """

    def __init__(self, queue: str, field: str, existing: object, asked: object, hint: str | None = None) -> None:
        super().__init__(queue, field, existing, asked, hint=hint)
        self.queue = queue
        self.field = field
        self.existing = existing
        self.asked = asked

    def _text(self) -> str:
        return f"queue {self.queue!r} has {self.field}={_value(self.existing)}, not {_value(self.asked)}"


class Unsupported(BusError):
    """The engine does not support the operation.

    Attributes:
        engine: Name of the engine, which is the scheme of its URL.
        what: The operation.
    """

    def __init__(self, engine: str, what: str, hint: str | None = None) -> None:
        super().__init__(engine, what, hint=hint)
        self.engine = engine
        self.what = what

    def _text(self) -> str:
        return f"{self.engine}:// does not support {self.what}"


class BadPayload(BusError):
    """The receiver cannot read the payload: it lacks the serializer, or the content is invalid.

    Attributes:
        content_type: Name of the serializer that wrote it.
        problem: The problem.
    """

    def __init__(self, content_type: str, problem: str, hint: str | None = None) -> None:
        super().__init__(content_type, problem, hint=hint)
        self.content_type = content_type
        self.problem = problem

    def _text(self) -> str:
        return f"payload of type {_shown(self.content_type)!r}: {_shown(self.problem)}"


class PayloadTooLarge(BusError, ValueError):
    """A body is over the limit of the engine; nothing was sent.

    Attributes:
        size: Its size in bytes.
        limit: The limit of the engine in bytes.
    """

    hint = "pass a reference to the data, or raise max_body"
    _WHAT: ClassVar[str] = "body"

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(size, limit)
        self.size = size
        self.limit = limit

    def _text(self) -> str:
        return f"{self._WHAT} of {self.size} bytes is over the limit of {self.limit}"


class ResultTooLarge(PayloadTooLarge):
    """The result of a task is over the limit of the engine; the task stays with its worker."""

    _WHAT = "result"


class StaleHub(BusError):
    """The hub is older than one that was seen before: a later one runs on the same store.

    Attributes:
        address: Its address.
        epoch: The epoch of the hub.
        seen: The epoch that was seen before.
    """

    hint = "stop the older hub"

    def __init__(self, address: Address | str | None, epoch: int, seen: int) -> None:
        super().__init__(address, epoch, seen)
        self.address = address
        self.epoch = epoch
        self.seen = seen

    def _text(self) -> str:
        return f"the hub{_at_address(self.address)} has epoch {self.epoch}, but epoch {self.seen} was seen before"


class StoreError(BusError):
    """The folder of a hub cannot be used, or not any more: nothing was changed there, nothing else is stored.

    Attributes:
        path: The folder.
        problem: The problem with it.
    """

    def __init__(self, path: str, problem: str, hint: str | None = None) -> None:
        super().__init__(path, problem, hint=hint)
        self.path = path
        self.problem = problem

    def _text(self) -> str:
        return f"{self.path}: {self.problem}"


class TaskError(BusError):
    """The outcome of a task that has no result, or the failure to get its outcome.

    Attributes:
        task: Identity of the task; empty if a handler raises it about its own task.
        reason: The reason, in a few words; may be empty.
        outcome: Whether a task that was waited for ended with it; False if a handler raises it about its own task.
    """

    _WHAT: ClassVar[str] = "has no result"

    # A subclass need not call the constructor.
    task: str = ""
    reason: str = ""
    outcome: bool = False

    def __init__(self, task: str = "", reason: str = "") -> None:
        super().__init__(task, reason)
        self.task = task
        self.reason = reason

    def _text(self) -> str:
        return " ".join(filter(None, ("task", self.task, self._WHAT))) + (
            f": {_shown(self.reason)}" if self.reason else ""
        )


class TaskRejected(TaskError):
    """A worker rejected the task."""

    _WHAT = "was rejected"


class TaskCancelled(TaskError):
    """The task was cancelled; it is not begun again."""

    _WHAT = "was cancelled"


class TaskExpired(TaskError, TimeoutError):
    """The task expired before it was begun, or passed its deadline before it was done."""

    _WHAT = "expired"


class TimeLimit(TaskError, TimeoutError):
    """The handler of the task took longer than its time limit."""

    _WHAT = "exceeded its time limit"


class DeadLettered(TaskError):
    """The task was begun and lost too often, or was rejected for good; it is among the dead letters of its queue."""

    _WHAT = "is a dead letter"


class UnknownTask(TaskError, LookupError):
    """There is no task with that identity in this store."""

    _WHAT = "is unknown"


class ResultExpired(TaskError, LookupError):
    """The task ended, and its outcome is not stored any more, or was not to be stored."""

    _WHAT = "has no stored outcome"


class WiringError(RedpollError):
    """Exchanges and queues could not be made or wired as requested."""


class UnknownName(WiringError, LookupError):
    """No exchange or queue of that name is visible from here.

    Attributes:
        kind: "exchange" or "queue".
        name: Its name.
        waited: Time in seconds that was waited for it to appear.
    """

    def __init__(self, kind: str, name: str, waited: float = 0.0, hint: str | None = None) -> None:
        super().__init__(kind, name, waited, hint=hint)
        self.kind = kind
        self.name = name
        self.waited = waited

    def _text(self) -> str:
        return f"there is no {self.kind} {self.name!r}" + (f" after {self.waited:g} s" if self.waited else "")


class NameTaken(WiringError):
    """The name belongs to another owner, or to an object with other settings.

    Attributes:
        kind: "exchange" or "queue".
        name: Its name.
        owner: The owner, as far as it is known.
    """

    def __init__(self, kind: str, name: str, owner: str, hint: str | None = None) -> None:
        super().__init__(kind, name, owner, hint=hint)
        self.kind = kind
        self.name = name
        self.owner = owner

    def _text(self) -> str:
        return f"the {self.kind} name {self.name!r} is taken: {_shown(self.owner)}"


class ScopeError(WiringError, UsageError):
    """A name with that scope cannot be used, or seen, from here."""


class DirectoryUnavailable(WiringError, LinkError):
    """The directory does not answer.

    Attributes:
        address: The address of the directory.
        reason: The reason, as far as it is known here.
    """

    hint = "start one with: redpoll directory"

    def __init__(self, address: Address | str | None, reason: str, hint: str | None = None) -> None:
        super().__init__(address, reason, hint=hint)
        self.address = address
        self.reason = reason

    def _text(self) -> str:
        return f"the directory{'' if self.address is None else f' {self.address}'} does not answer: {self.reason}"
