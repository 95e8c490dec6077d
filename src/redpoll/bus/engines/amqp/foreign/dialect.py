"""The messages of another library, as the engine of `speak` needs them: `Dialect`, and the records that it works with."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from redpoll.bus.engines.amqp.foreign.messages import Message, Queue
from redpoll.bus.engines.amqp.wire import Properties
from redpoll.bus.envelope import Envelope, Outcome, OutcomeKind, Payloads
from redpoll.bus.failures import Failure
from redpoll.errors import Unsupported

__all__ = ["PAYLOADS", "Dialect", "Request", "expiration", "failure_of", "refuse"]

PAYLOADS: Final = Payloads()
"""The serializers of bodies before they are translated, and after it: those that every program has."""


class Request(NamedTuple):
    """A task, a call or an event, on its way to another library or from there.

    Attributes:
        envelope: The message.
        id: The id that its reply has; "" is none.
        reply_to: The queue for replies, or "".
        ttl: Seconds after which the broker drops it; None is never.
        subject: The subject of an event, with the word of its pattern in front; "" otherwise.
        wanted: True if a reply is wanted.
    """

    envelope: Envelope
    id: str = ""
    reply_to: str = ""
    ttl: float | None = None
    subject: str = ""
    wanted: bool = True


class Dialect(Protocol):
    """The wire format of another library: names of exchanges and queues, and messages. Pure functions.

    Queues and subjects are those of the patterns: "tasks", "rpc:calculator", "broadcast.purchase.car". What the library does
    not have is `Unsupported`.
    """

    @property
    def name(self) -> str:
        """Name of the library."""

    def queue(self, name: str) -> Queue:
        """Return the library's queue for a queue."""

    def events(self, pattern: str) -> Queue | None:
        """Return a queue for the events of subjects that match; None if the library sends no such."""

    def replies(self, unique: str) -> Queue:
        """Return a queue for replies, given a part of its name that no other has."""

    def write(self, target: str, request: Request) -> Message:
        """Translate a task or a call for a queue; or an event, for a subject."""

    def read(self, target: str, body: bytes, properties: Properties) -> Request:
        """Translate a message of a queue, or of one for events.

        Raises:
            BadPayload: It cannot be read.
        """

    def write_reply(self, target: str, request: Request, reply: Outcome | Envelope) -> Message | None:
        """Translate the outcome of a request, or its progress; None is for progress that the library does not have."""

    def read_reply(self, body: bytes, properties: Properties) -> tuple[str, Outcome | Envelope]:
        """Translate a reply: the id of its request, and its outcome or progress.

        Raises:
            BadPayload: It cannot be read.
        """


def expiration(ttl: float | None) -> str | None:
    """Return a time in seconds as the property of that name: milliseconds, as text."""
    return None if ttl is None else str(max(0, round(ttl * 1000)))


def refuse(library: str, what: str, hint: str | None = None) -> Unsupported:
    """Return the error for an operation that another library does not have."""
    return Unsupported("amqp", f"{what} with speak={library!r}", hint)


def failure_of(outcome: Outcome) -> Failure:
    """Return the exception that stands for an outcome other than a result."""
    if outcome.kind is OutcomeKind.ERROR and outcome.envelope is not None:
        return Failure.read(outcome.envelope)
    return Failure("redpoll.errors", outcome.kind.name, outcome.detail)
