"""Reading of the tables: all but bodies when a hub starts, bodies and outcomes when they are asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Final

from redpoll.bus.broker import outputs
from redpoll.bus.broker.outputs import Brief, Dead, Declared, Ended, Kept, Keyed, Put, Taken, Write
from redpoll.bus.broker.restore import Stored
from redpoll.bus.engines.hub.bodies import Bodies
from redpoll.bus.engines.hub.tables import BODY, Clock, Database, msgpack, number_of, numbers, numbers_of
from redpoll.bus.envelope import OutcomeKind
from redpoll.bus.records import QueueSpec

__all__ = ["load", "load_tasks", "read_bodies", "read_outcome"]


def _lines(history: bytes | None) -> tuple[str, ...]:
    return () if history is None else tuple(msgpack.decode(history))


def load(database: Database, clock: Clock) -> Iterator[Write]:
    """The contents of the tables, as writes for `Broker.restored`; without the tasks, and without bodies."""
    queues: dict[int, str] = {}
    for key, spec, paused in database.execute("SELECT number, spec, paused FROM queues ORDER BY number"):
        fields = msgpack.decode(spec)
        declared = QueueSpec(**{**fields, "topics": tuple(fields["topics"])})
        queues[key] = declared.name
        yield Declared(declared, bool(paused))
    for key, serial, bits, used, text in database.execute(
        "SELECT queue, serial, bits, used, key FROM keys ORDER BY queue, place"
    ):
        yield Keyed(queues[key], text.decode(), number_of(serial, bits), clock.loaded(used))
    names: dict[str, str] = {}
    for serial, bits, size, token, ended, more in database.execute(
        "SELECT serial, bits, size, token, ended, more FROM results ORDER BY ended, serial"
    ):
        queue = msgpack.decode(more)[0]
        yield Brief(number_of(serial, bits), names.setdefault(queue, queue), size, token, clock.loaded(ended))
    for serial, bits, key, size, flags, priority, attempts, history, origin, parents in database.execute(
        "SELECT serial, bits, queue, size, flags, priority, attempts, history, origin, parents FROM dead ORDER BY number"
    ):
        id_, first = number_of(serial, bits), int.from_bytes(origin or b"", "big")
        yield Dead(id_, queues[key], None, size, _lines(history), flags, priority, attempts, first, numbers_of(parents))
    for subject, size, events in database.execute("SELECT subject, size, events FROM kept ORDER BY number"):
        yield Kept(subject.decode(), size, tuple((body, length) for body, length in msgpack.decode(events)))
    for name, due, spec in database.execute("SELECT name, due, spec FROM schedules ORDER BY name"):
        yield outputs.Scheduled(name.decode(), clock.loaded(due), tuple(msgpack.decode(spec)))


def load_tasks(database: Database, clock: Clock) -> Iterator[Stored]:
    """The tasks in the tables, without bodies."""
    queues = {key: name.decode() for key, name in database.execute("SELECT number, name FROM queues")}
    hands = {serial: hand for serial, *hand in database.execute("SELECT serial, token, accepted, peer FROM taken")}
    loaded = clock.loaded
    for (
        serial,
        bits,
        queue,
        size,
        flags,
        priority,
        due,
        expires,
        attempts,
        lost,
        history,
        origin,
        parents,
    ) in database.execute(
        """SELECT serial, bits, queue, size, flags, priority, due, expires, attempts, lost, history, origin, parents
        FROM tasks ORDER BY serial"""
    ):
        number = number_of(serial, bits)
        put = Put(
            number,
            queues[queue],
            None,
            size,
            flags,
            priority,
            due if due is None else loaded(due),
            expires if expires is None else loaded(expires),
            attempts,
            () if history is None else _lines(history),
            0 if origin is None else int.from_bytes(origin, "big"),
            lost,
            () if parents is None else numbers_of(parents),
        )
        if serial in hands:
            token, accepted, peer = hands[serial]
            yield put, Taken(number, token, peer.decode()), bool(accepted)
        else:
            yield put, None, False


def read_bodies(database: Database, bodies: Bodies, tasks: Sequence[int]) -> list[bytes | ValueError | None]:
    """Read the bodies of tasks, in one step for all; None of one that is in no table, the error of one that is damaged.

    Each step would wait for the interpreter lock.
    """
    ((sizes, data),) = database.execute(_BODIES, (numbers([each >> 64 for each in tasks]),))
    view = memoryview(data or b"")
    found: list[bytes | ValueError | None] = []
    start = 0
    for size in json.loads(sizes):
        if size is None:
            found.append(None)
        elif isinstance(size, str):
            try:
                found.append(bodies.read(size))
            except ValueError as error:
                found.append(error)
        else:
            found.append(bytes(view[start : start + size]))
            start += size
    return found


# Joined as the text that they are not, byte by byte. A reference has the place of a length.
_BODIES: Final = f"""SELECT json_group_array(iif(typeof(body) = 'text', body, length(body))),
    cast(group_concat(iif(typeof(body) = 'text', '', body), '') AS BLOB)
    FROM (SELECT {BODY.format("value")} AS body FROM json_each(?) LIMIT -1)"""  # noqa: S608


def read_outcome(database: Database, bodies: Bodies, clock: Clock, task: int) -> Ended | None:
    """Read the outcome of a task; None if it is in no table."""
    for bits, kind, size, token, ended, attempts, empty, more, body in database.execute(
        "SELECT bits, kind, size, token, ended, attempts, empty, more, body FROM results WHERE serial = ?",
        (task >> 64,),
    ):
        queue, detail, history = msgpack.decode(more)
        payload = None if empty else bodies.read(body) if isinstance(body, str) else body
        outcome = OutcomeKind(kind), payload, size, detail, token, clock.loaded(ended)
        return Ended(number_of(task >> 64, bits), True, *outcome, attempts, tuple(history), queue)
    return None
