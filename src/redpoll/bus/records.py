"""Plain values that engines and patterns share: specs, capabilities, events, receipts, infos."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from redpoll.bus.envelope import Envelope, Outcome
from redpoll.checks import Check, duration, flag, integer, one_of, optional, require, seconds
from redpoll.errors import ConfigError, PayloadTooLarge, UnknownTask, Unsupported, UsageError

__all__ = [
    "MAX_SUBJECT",
    "AtLimit",
    "Capabilities",
    "Event",
    "Publication",
    "QueueInfo",
    "QueueKind",
    "QueueSpec",
    "Receipt",
    "ScheduleInfo",
    "Step",
    "TaskInfo",
    "TaskState",
    "Times",
    "check_flags",
    "check_last",
    "check_publishing",
    "check_steps",
    "check_subject",
    "task_id",
    "task_number",
    "words_match",
]

MAX_SUBJECT: Final = 255
"""Bytes that the name of a queue, a subject, a pattern or a `dedup` key may have."""

QueueKind = Literal["task", "rpc", "events"]
"""The use of a queue. It decides which permission its use needs: submit and work; call and serve; subscribe (the queue
of a durable subscription or of a pool of listeners, which only its topics fill)."""

AtLimit = Literal["wait", "refuse", "drop-old"]
"""The fate of a message for which a queue has no room: its publish waits; it is refused as never sent; or the oldest
one that is ready is dropped for it, ends as `OutcomeKind.DEAD`, and is counted. Exchanges
have an enum: `redpoll.wiring.AtLimit`."""

TaskState = Literal["ready", "delayed", "taken", "done", "dead"]
"""The place of a task: `taken` from when a worker was given it until it ends or goes back."""


def check_subject(field: str, text: object, *, pattern: bool = False) -> None:
    """Check a name, a subject, or a pattern of subjects.

    Words are separated by dots. In a pattern the word ``*`` stands for any one word, and ``#`` for any number of words,
    none too.

    Raises:
        ConfigError: It is empty, longer than `MAX_SUBJECT` bytes, cannot be sent as UTF-8, or has a wildcard where none is
            allowed.
    """
    if not isinstance(text, str) or not text:
        raise ConfigError(field, text, "must be text, not empty")
    if len(text) > MAX_SUBJECT or not text.isascii():
        _check_size(field, text)
    if not pattern and ("*" in text or "#" in text) and not {"*", "#"}.isdisjoint(text.split(".")):
        raise ConfigError(field, text, "must not have the wildcards * and #")


def _check_size(field: str, text: str, hint: str | None = None) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise ConfigError(field, text, f"cannot be sent as UTF-8: {error.reason}") from error
    if size > MAX_SUBJECT:
        raise ConfigError(field, text, f"must have at most {MAX_SUBJECT} bytes", hint)


def words_match(pattern: str) -> Callable[[str], bool]:
    """Return a function that matches a text of words with a pattern, as an engine matches subjects."""
    words = [
        {"*": r"[^.]*\.", "#": r"(?:[^.]*\.)*"}.get(word) or rf"{re.escape(word)}\." for word in pattern.split(".")
    ]
    full = re.compile("".join(words)).fullmatch
    return lambda text: full(f"{text}.") is not None


def _words(value: Any) -> str | None:
    if not isinstance(value, tuple):
        return "must be a tuple of patterns"
    for each in value:
        check_subject("topics", each, pattern=True)
    return None


_U53: Final = 2**53
_COUNT: Final = integer(1, _U53)
_CHECKS: Final[Mapping[str, Check]] = MappingProxyType(
    {
        "kind": one_of("task", "rpc", "events"),
        "durable": flag,
        "max_length": optional(_COUNT),
        "max_bytes": _COUNT,
        "at_limit": one_of("wait", "refuse", "drop-old"),
        "expires": optional(seconds),
        "ttl": optional(seconds),
        "priorities": integer(1, 32),
        "max_attempts": optional(integer(1, 1_000_000)),
        "topics": _words,
    }
)


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """The settings of a queue. Times are seconds, sizes are bytes.

    Raises:
        ConfigError: A field has a value that it cannot have; the text names it.
    """

    name: str
    """Name of the queue: words separated by dots. Patterns put a prefix and a colon before the name that a user chose
    ("rpc:calculator"); permissions are for the name behind it. Of kind "task" all of the name is the user's."""

    kind: QueueKind = "task"
    """Its use. It never changes."""

    durable: bool = True
    """True if its tasks survive a restart, on an engine that has a disk. It never changes."""

    max_length: int | None = None
    """Tasks that it holds at most, those that workers have included. None (default): no limit."""

    max_bytes: int = 2**30
    """Bytes that it holds at most: bodies, and 256 bytes more for each task. One task always fits."""

    at_limit: AtLimit = "wait"
    """The fate of a message for which there is no room."""

    expires: float | None = None
    """The queue is deleted when it had no consumer for so long, and no task is in it; of kind "events" with those that are.
    None (default): never."""

    ttl: float | None = None
    """A task that was not begun after so long ends as expired, unless it brought a time of its own. None: never."""

    priorities: int = 1
    """Levels of priority; a task's is 0 (the lowest, and the default) to one less than this."""

    max_attempts: int | None = 10
    """A task that lost so many workers becomes a dead letter. None: never."""

    dead_letter: str | None = None
    """Name of the queue that takes the dead letters, where it has room (or drops its oldest); on a hub, a queue that is not
    durable takes none of one that is. None (default), and those that it does not take: they stay beside this queue, within
    `max_length` and `max_bytes`, the oldest leaving first. Queues whose dead letters would return to them cannot be
    declared."""

    topics: tuple[str, ...] = ()
    """Patterns of subjects: events of matching subjects are put into this queue too."""

    def __post_init__(self) -> None:
        """Check every field."""
        check_subject("name", self.name)
        if self.dead_letter is not None:
            check_subject("dead_letter", self.dead_letter)
        for field, check in _CHECKS.items():
            value = getattr(self, field)
            require(field, value, check)

    def difference(self, other: QueueSpec) -> str | None:
        """Return the first field in which another one differs; None if they are equal."""
        return next((name for name in _FIELDS if getattr(self, name) != getattr(other, name)), None)


_FIELDS: Final = tuple(each.name for each in dataclasses.fields(QueueSpec))


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The abilities of an engine, as they are: a pattern that needs more builds it visibly, or raises `Unsupported`."""

    engine: str
    """Name of the engine, which is the scheme of its URL."""

    confirm: Literal["memory", "process", "disk", "replicated"]
    """The losses that a confirmed task survives: none; the end of this process; a power failure; the loss of a machine."""

    results: Literal["stored", "live"]
    """"stored": outcomes are available later and to others (`lookup`, `watch`); "live": only to the watcher."""

    max_body: int
    """The largest body, in bytes."""

    delay: bool = True
    """True if the engine keeps tasks that are not due yet."""

    priorities: int = 32
    """Levels of priority that a queue can have; 1 is none."""

    dedup: bool = True
    """True if a second message with the same key is harmless."""

    fencing: bool = True
    """True if the outcome of a worker that was declared dead is refused."""

    attempts: Literal["lost", "given", "none"] = "lost"
    """The meaning of an attempt at a task: lost workers alone; every time that it was given out; nothing, so that
    `max_attempts` is not kept. Notifications and broadcasts may count every time all the same."""

    browse: bool = True
    """True if tasks can be browsed, purged, moved and redriven."""

    cancel: bool = True
    """True if a pending task can be withdrawn, and a worker asked to stop."""

    progress: bool = True
    """True if a worker's progress reaches the watchers."""

    wildcards: bool = True
    """True if the engine itself matches patterns; if False, receivers filter."""

    last: bool = True
    """True if the last messages of a subject can be kept for later subscribers."""

    successors: bool = True
    """True if `ack` can publish successors in the same step, and tasks can come after others (`publish_steps`)."""

    schedule: bool = True
    """True if the engine keeps schedules."""

    waits_in_order: bool = True
    """True if publishes that wait for room in a queue are taken in their order, those of all programs."""

    hold: float | None = None
    """Seconds after which the engine takes a task away from a worker that lives. None: never."""

    remedies: tuple[tuple[str, str], ...] = ()
    """Remedies for capabilities that are not there: their names, and the hints of errors."""

    def require(self, name: str, what: str, hint: str | None = None) -> None:
        """Raise if a capability is not there.

        Args:
            name: Name of the field.
            what: The operation that needs it, for the text.
            hint: The remedy; None is the one of `remedies`.

        Raises:
            Unsupported: The field is False, "none", or 1 for priorities.
        """
        value = getattr(self, name)
        if value in {False, "none"} or (name == "priorities" and value == 1):
            raise Unsupported(self.engine, what, hint or dict(self.remedies).get(name))


def task_id(store: str, number: int) -> str:
    """Return the id of a task as text: the store, the serial, and 64 random bits.

    Args:
        store: Name of the store.
        number: The serial, times 2**64, and the random bits.
    """
    return f"{store}-{number >> 64}-{number & 0xFFFF_FFFF_FFFF_FFFF:016x}"


def task_number(task: str, store: str) -> int:
    """Return the number of a task by its id; "" is any store.

    Raises:
        UnknownTask: It is no id, or of another store.
    """
    found, _, rest = task.rpartition("-")[0].rpartition("-")
    with suppress(ValueError):
        number = (int(rest) << 64) | int(task.rpartition("-")[2], 16)
        if found == (store or found) and task_id(found, number) == task and number >> 128 == 0:
            return number
    raise UnknownTask(task)


class Receipt(NamedTuple):
    """The id of a task, for its publisher. It can be awaited, and is its own result.

    Attributes:
        store: Name of the store.
        number: The serial, times 2**64, and the random bits; 0 for an event.
        duplicate: True if nothing was put into the queue because a task with this `dedup` key was there before; the id
            is the earlier one's.
    """

    store: str
    number: int
    duplicate: bool = False

    @property
    def id(self) -> str:
        """The task's id: store, serial and 64 random bits as text; "" for an event."""
        return task_id(self.store, self.number) if self.number else ""

    def __await__(self) -> Generator[None, None, Receipt]:
        """Return itself."""
        yield from ()
        return self

    def __repr__(self) -> str:
        return f"<Receipt {self.id}{' duplicate' if self.duplicate else ''}>"


class Event(NamedTuple):
    """A message to a live subscription.

    Attributes:
        subject: The subject that it was published to.
        envelope: The message.
        kept: True if it was published before the subscription began (`last`).
    """

    subject: str
    envelope: Envelope
    kept: bool = False


def _left(value: Any) -> str | None:
    """Validate a time that is left; below 0 it is over."""
    return duration(abs(value) if type(value) in {int, float} else value)


_PUBLISHING: Final[tuple[tuple[str, Check], ...]] = (
    ("priority", integer(0, _U53)),
    ("delay", duration),
    ("ttl", optional(_left)),
    ("deadline", optional(_left)),
    ("timeout", optional(_left)),
)
_MOST_KEPT: Final = 1_000_000
_MONTH: Final = 2_592_000.0
_NUMBERS: Final = frozenset({int, float})


def check_publishing(
    priority: int,
    delay: float,
    ttl: float | None = None,
    deadline: float | None = None,
    timeout: float | None = None,
    dedup: str | None = None,
) -> None:
    """Check how a message is to be published, as `redpoll.bus.engine.Engine.publish` has it.

    Raises:
        ConfigError: A value cannot be.
        UsageError: It has a ttl and a deadline.
    """
    if ttl is not None and deadline is not None:
        raise UsageError("a task has a ttl or a deadline, not both", "the deadline covers the waiting too")
    if dedup is not None:
        if not isinstance(dedup, str):
            raise ConfigError("dedup", dedup, "must be text")
        _check_size("dedup", dedup, "a digest of a longer one")
    if (
        type(priority) is int
        and 0 <= priority <= _U53
        and type(delay) in _NUMBERS
        and 0 <= delay < _MONTH
        and (ttl is None or (type(ttl) in _NUMBERS and 0 <= ttl < _MONTH))
        and (deadline is None or (type(deadline) in _NUMBERS and 0 <= deadline < _MONTH))
        and (timeout is None or (type(timeout) in _NUMBERS and 0 <= timeout < _MONTH))
    ):
        # The common case; the checks below say what is wrong otherwise.
        return
    for (name, check), value in zip(_PUBLISHING, (priority, delay, ttl, deadline, timeout), strict=True):
        require(name, value, check)


def check_flags(**given: object) -> None:
    """Check that options are True or False.

    Raises:
        ConfigError: One of them is something else.
    """
    for name, value in given.items():
        if type(value) is not bool:
            require(name, value, flag)


def check_last(last: int) -> None:
    """Check how many of the latest broadcasts of a subject are to be kept.

    Raises:
        ConfigError: It is no such number.
    """
    if type(last) is not int or not 0 <= last <= _MOST_KEPT:
        require("last", last, integer(0, _MOST_KEPT))


@dataclass(frozen=True, slots=True)
class Publication:
    """A task to be put into a queue: a successor in `Delivery.ack`.

    Attributes and their defaults are those of `Engine.publish`.

    Raises:
        ConfigError: A value cannot be.
        UsageError: It has a ttl and a deadline.
    """

    queue: str
    envelope: Envelope
    priority: int = 0
    delay: float = 0.0
    ttl: float | None = None
    deadline: float | None = None
    dedup: str | None = None
    keep: bool = True

    def __post_init__(self) -> None:
        """Check every field that can be wrong."""
        check_publishing(self.priority, self.delay, self.ttl, self.deadline, None, self.dedup)

    @property
    def options(self) -> tuple[int, float, float | None, float | None, str | None, bool, bool, float | None]:
        """The options, in the order of `Engine.publish`."""
        return self.priority, self.delay, self.ttl, self.deadline, self.dedup, self.keep, False, None


class Step(NamedTuple):
    """A task that is published together with others, and may come after some of these.

    Attributes:
        publication: The task.
        after: The places of those that it comes after, in the list of all, which are before its own. It is begun when all of
            them have their outcomes, and given these.
        collect: False (default): it is cancelled where one of them does not end with a result. True: it is begun then too.
    """

    publication: Publication
    after: tuple[int, ...] = ()
    collect: bool = False


_MOST_STEPS: Final = 10_000


def check_steps(steps: Sequence[Step], sizes: Sequence[int], max_body: int) -> None:
    """Check tasks that are to be published together.

    Args:
        steps: The tasks.
        sizes: The sizes of their bodies.
        max_body: Maximum size of a body, and of all of these together, in bytes.

    Raises:
        UsageError: They are none or too many; one comes after itself, a later one, or one twice, or has a delay; or one but
            the last has a key.
        PayloadTooLarge: The bodies are larger.
    """
    if not 1 <= len(steps) <= _MOST_STEPS:
        raise UsageError(f"{len(steps)} tasks cannot be published together", f"1 to {_MOST_STEPS} can")
    for place, (publication, after, collect) in enumerate(steps):
        if not all(type(each) is int and 0 <= each < place for each in after) or len(set(after)) < len(after):
            raise UsageError(f"task {place} cannot come after {after!r}", "name each earlier one once, by its place")
        check_flags(collect=collect)
        if after and publication.delay:
            raise UsageError("a task that comes after others cannot have a delay", "let a task before it wait")
        if publication.dedup is not None and place < len(steps) - 1:
            raise UsageError("only the last of tasks that are published together can have a key", "it stands for all")
    if sum(sizes) > max_body:
        raise PayloadTooLarge(sum(sizes), max_body)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueInfo:
    """The contents of a queue, at one moment, and its counters since it was made (or the broker was started)."""

    spec: QueueSpec
    ready: int
    """Tasks that wait for a worker."""
    delayed: int
    """Tasks that are not due yet."""
    taken: int
    """Tasks that workers have."""
    dead: int
    """Dead letters beside the queue."""
    bytes: int
    """Bytes that count against `QueueSpec.max_bytes`."""
    consumers: int
    paused: bool
    waiting: int
    """Publishes that wait for room."""
    submitted: int
    delivered: int
    """Hand-outs, repeated ones too."""
    done: int
    """Tasks that ended with a result or an error."""
    requeued: int
    """Given back, rejected, or lost with their worker."""
    expired: int
    cancelled: int
    dropped: int
    """Dropped for newer ones at the limit."""


class Times(NamedTuple):
    """The times of a schedule: either `every` or `cron`.

    Attributes:
        every: Seconds between two firings, the first of them from when it is set; at least 0.1.
        cron: Five fields, as in ``0 3 * * *``: minute, hour, day of the month, month, day of the week; each ``*``, a number,
            a range ``a-b``, steps ``*/n``, ``a-b/n`` or ``a/n`` (from a to the end), or a list of these.
        zone: The time zone of `cron`, as "Europe/Berlin". A time that the clocks skip in spring is the end of the gap, and
            one that they have twice in autumn is the first of both.
        missed: The fate of times at which the engine's own server was down: they become one firing, "once" it is back
            (default), or are left out ("skip").
    """

    every: float | None = None
    cron: str | None = None
    zone: str = "UTC"
    missed: Literal["once", "skip"] = "once"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleInfo:
    """A schedule."""

    name: str
    queue: str
    every: float | None
    """Seconds between two tasks; None where `cron` says when."""
    cron: str | None
    left: float
    """Seconds until the next task."""
    zone: str = "UTC"
    """The time zone of `cron`."""
    missed: str = "once"
    """The fate of times at which the engine's server was down: "once" or "skip"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInfo:
    """The state of a task."""

    id: str
    queue: str
    state: TaskState
    attempt: int
    """1 for its first worker, one more for each that was lost."""
    cancelling: bool = False
    """True if its worker was asked to stop."""
    outcome: Outcome | None = None
    """Its outcome."""
    envelope: Envelope | None = None
    """Its message; None once it is done, and where it cannot be read."""
    history: tuple[str, ...] = ()
    """The ends of its attempts, in words."""
    origin: str | None = None
    """The id of the dead letter that was redriven as this task."""
    watched: bool = False
    """True if a program waits for its outcome, or did so until its link was lost a moment ago."""
    after: tuple[str, ...] = ()
    """The ids of the tasks that it comes after; it is delayed while one of them has no outcome."""
