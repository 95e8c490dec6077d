"""What the tests of the directory share."""

from __future__ import annotations

from typing import Any

from redpoll import Address
from redpoll.wiring.directory.entries import Entry
from redpoll.wiring.directory.table import Holder, Outcome, Table

HERE = Address("tcp", "127.0.0.1", 4000)
THERE = Address("tcp", "127.0.0.1", 4001)
OWNER = b"o" * 16
OTHER = b"x" * 16

#: Seconds of a lease, where the clock is virtual.
LEASE = 15.0


def entry(name: str = "E", address: Address = HERE, **more: Any) -> Entry:
    """An entry of an exchange."""
    return Entry("exchange", name, address, **{"style": "distribute", "identity": OWNER, "run": 1, **more})


def table(*static: Entry, grace: float = 0.0, **more: Any) -> Table:
    """A table at time 0."""
    return Table(0.0, lease=LEASE, grace=grace, static=static, **more)


def join(names: Table, client: int = 1, run: int = 1, now: float = 0.0) -> Holder:
    """A client."""
    holder = Holder(bytes([client]) * 16, run)
    names.join(now, holder)
    return holder


def give(names: Table, holder: Holder, what: Entry, now: float = 0.0) -> Outcome:
    """Register, and say what became of it."""
    return names.register(now, holder, what).outcome


def told(names: Table, holder: Holder, now: float = 0.0) -> list[Entry | None]:
    """What a client is told now."""
    names.restless.pop(holder, None)
    return [seen.entry for _, seen in names.take_news(now, holder, 1000)]
