"""Results of tasks under the ids that other libraries give them: each is the last event of a subject, which a hub keeps."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Iterable, Sequence
from typing import Final

from redpoll.bus.awaitables import close_all
from redpoll.bus.engine import Engine, EventSink, Subscription
from redpoll.bus.envelope import Envelope
from redpoll.bus.records import Event, Receipt

__all__ = ["fetch", "is_ready", "leave", "store", "value_of", "watch"]

#: Seconds for a result to be taken.
_STORE: Final = 30.0
_UNTIL: Final = "until"
_LAST: Final = "ready"
#: Subjects of one subscription.
_SUBJECTS: Final = 1_000


def value_of(event: Event) -> bytes | None:
    """Return the result in an event; None if it was deleted, or is too old."""
    body, meta = event.envelope.body, event.envelope.meta or {}
    return None if not body or time.time() >= meta.get(_UNTIL, float("inf")) else bytes(body)


def is_ready(event: Event) -> bool:
    """Return True if the result was stored as one that does not change."""
    return bool((event.envelope.meta or {}).get(_LAST))


def store(
    engine: Engine, subject: str, value: bytes, seconds: float | None, *, ready: bool = False
) -> Awaitable[Receipt]:
    """Store a result for some seconds; None or 0 is no limit. No bytes delete it. One that is `ready` does not change."""
    meta = ({_UNTIL: time.time() + seconds} if seconds else {}) | ({_LAST: True} if ready else {})
    return engine.publish(Envelope("raw", value, meta or None), subject=subject, last=1, timeout=_STORE)


async def watch(engine: Engine, subjects: Sequence[str], sink: EventSink) -> list[Subscription]:
    """Take the results that there are, before this returns, and those that come.

    Raises:
        Unsupported: The engine keeps no events.
    """
    engine.capabilities.require("last", "results by ids of other libraries", "connect to a hub")
    opened: list[Subscription] = []
    try:
        for start in range(0, len(subjects), _SUBJECTS):
            some = subjects[start : start + _SUBJECTS]
            opened.append(await engine.subscribe(some, sink=sink, last=True))  # each counts at once
    except BaseException:
        await leave(opened)
        raise
    return opened


async def leave(subscriptions: Iterable[Subscription]) -> None:
    """Take no more."""
    await close_all(each.close() for each in subscriptions)


async def fetch(engine: Engine, subjects: Sequence[str]) -> list[bytes | None]:
    """Return the results that there are."""
    found: dict[str, bytes | None] = {}

    def note(event: Event) -> None:
        found[event.subject] = value_of(event)

    await leave(await watch(engine, subjects, note))
    return [found.get(subject) for subject in subjects]
