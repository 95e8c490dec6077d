"""Decisions of a broker: effects for its owner to carry out, and writes for a store.

After each turn (one call, or several) the owner takes both. Without a store `Outbox.writes` is None, nothing is collected
there, and all effects are carried out at once. With one, the writes of a turn are one transaction, effects of the kinds in
`WAITS` are held back until it is on disk, and so is the result of a call; the others go out at once.

An effect is a tuple: its kind, then the peer that it is for. Payloads are the owner's.

| kind | rest | meaning |
|---|---|---|
| DELIVER | peer, consumer, token, task, payload | hand the task out; it may have ended since, another effect says so then |
| OUTCOME | peer, watch, id, kind, payload, detail | tell a watcher the outcome |
| PROGRESS | peer, watch, id, payload | tell a watcher the worker's message |
| ADMITTED | peer, parked, id, error, known | a publish that waited is over; with `known` the id is an earlier task's |
| CANCELLED | peer, consumer, token, reason | tell the worker that its task is cancelled |
| TOLD | peer, consumer, token, payload | tell the worker the publisher's message |
| STOPPED | peer, consumer, reason | tell the consumer that the queue is gone |
| EVENT | subscriptions, subject, payload, kept | hand the event to each of a tuple of subscriptions |
| NOTE | None, what, queue, id, detail | tell the observers; only where `Outbox.observed` |
| RECALL | peer, watch, id | tell a watcher the outcome, which the store has |

The owner of a store may drop the payload of a durable task that is on disk, and set it to None: it is None then in
DELIVER, and in the writes that put the task elsewhere.

That a task is not a worker's any more it learns when it returns: `Work.reclaim` answers "lost".

Times in writes are those that the broker was given; a store keeps them as wall-clock times.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias

from redpoll.bus.envelope import OutcomeKind
from redpoll.bus.records import QueueSpec

__all__ = [
    "ADMITTED",
    "CANCELLED",
    "DELIVER",
    "EVENT",
    "NOTE",
    "OUTCOME",
    "PROGRESS",
    "RECALL",
    "STOPPED",
    "TOLD",
    "WAITS",
    "Accepted",
    "Asked",
    "Back",
    "Brief",
    "Buried",
    "Changed",
    "Dead",
    "Declared",
    "Deleted",
    "Effect",
    "Ended",
    "Forgotten",
    "Kept",
    "Keyed",
    "Moved",
    "Outbox",
    "Put",
    "Scheduled",
    "Taken",
    "Write",
]

Effect: TypeAlias = tuple[Any, ...]

DELIVER, OUTCOME, PROGRESS, ADMITTED, CANCELLED, TOLD, STOPPED, EVENT, NOTE, RECALL = range(10)

WAITS: Final = frozenset({OUTCOME, ADMITTED})
"""The kinds of effects that depend on a write."""


class Declared(NamedTuple):
    """A queue is there, or has other settings."""

    spec: QueueSpec
    paused: bool


class Deleted(NamedTuple):
    """A queue is gone; its tasks were ended before."""

    queue: str


class Put(NamedTuple):
    """A task is in a queue: ready, or delayed until `due`, or until those that it comes after have ended.

    A payload of None is that of `origin`, which the store has.
    """

    id: int
    queue: str
    payload: Any
    size: int
    flags: int
    priority: int
    due: float | None
    expires: float | None
    attempts: int
    history: tuple[str, ...]
    origin: int
    lost: int = 0
    after: tuple[int, ...] = ()


class Keyed(NamedTuple):
    """A dedup key was used."""

    queue: str
    key: str
    id: int
    when: float


class Taken(NamedTuple):
    """A task was handed out."""

    id: int
    token: int
    peer: str


class Accepted(NamedTuple):
    """A task that was handed out is not to be handed out again."""

    id: int


class Asked(NamedTuple):
    """A task that was handed out is to be cancelled."""

    id: int


class Changed(NamedTuple):
    """A task has another payload, of the same size."""

    id: int
    payload: Any


class Back(NamedTuple):
    """A task went back to its queue: ready, or delayed until `due`. `attempts` failed, in `lost` of them a worker died."""

    id: int
    due: float | None
    attempts: int
    history: tuple[str, ...]
    lost: int = 0


class Moved(NamedTuple):
    """A ready task is in another queue."""

    id: int
    queue: str


class Ended(NamedTuple):
    """A task is gone; with `keep` its outcome is to be stored."""

    id: int
    keep: bool
    kind: OutcomeKind
    payload: Any
    size: int
    detail: str
    token: int
    when: float
    attempts: int = 0
    history: tuple[str, ...] = ()
    queue: str = ""


class Dead(NamedTuple):
    """A task is a dead letter beside its queue; its outcome is in an `Ended` before. With None the store has its payload."""

    id: int
    queue: str
    payload: Any
    size: int
    history: tuple[str, ...]
    flags: int = 0
    priority: int = 0
    attempts: int = 0
    origin: int = 0
    after: tuple[int, ...] = ()


class Brief(NamedTuple):
    """The decisive fields of an `Ended` that is in the store."""

    id: int
    queue: str
    size: int
    token: int
    when: float


class Buried(NamedTuple):
    """A dead letter is gone."""

    id: int


class Forgotten(NamedTuple):
    """A stored outcome is gone."""

    id: int


class Kept(NamedTuple):
    """The last events of a subject, the newest of them last; none removes them."""

    subject: str
    limit: int
    events: tuple[tuple[Any, int], ...]


class Scheduled(NamedTuple):
    """A schedule was set, or fired: queue, payload, size, options, every, cron, zone, missed; None removes it."""

    name: str
    due: float
    values: tuple[Any, ...] | None


Write: TypeAlias = (
    Declared
    | Deleted
    | Put
    | Keyed
    | Taken
    | Accepted
    | Asked
    | Back
    | Changed
    | Moved
    | Ended
    | Brief
    | Dead
    | Buried
    | Forgotten
    | Kept
    | Scheduled
)


class Outbox:
    """Collects the effects and the writes of the parts of a broker.

    Args:
        journal: True if there is a store.

    Attributes:
        effects: The effects, in order.
        writes: The writes, in order; None without a store.
        observed: True if there are observers.
    """

    __slots__ = ("effects", "observed", "writes")

    def __init__(self, journal: bool) -> None:
        self.effects: list[Effect] = []
        self.writes: list[Write] | None = [] if journal else None
        self.observed = False

    def take(self) -> list[Effect]:
        """Take the effects since the last call."""
        effects = self.effects
        self.effects = []
        return effects

    def take_writes(self) -> list[Write]:
        """Take the writes since the last call."""
        writes = self.writes
        if not writes:
            return []
        self.writes = []
        return writes

    def write(self, durable: object, write: Write) -> None:
        """Add a write if there is a store, and what it is about is durable."""
        if durable and self.writes is not None:
            self.writes.append(write)

    def note(self, what: str, queue: str, task: int = 0, detail: str = "") -> None:
        """Add a note for the observers."""
        if self.observed:
            self.effects.append((NOTE, None, what, queue, task, detail))
