"""The tables of a hub's store, and how writes get there: whatever a group of them adds up to, in one statement.

A statement of SQLite gives up the interpreter lock, and a busy event loop is slow to give it back: what is frequent goes
into one `INSERT`, into a view whose trigger carries it out. Its columns are JSON arrays of numbers, and one of bytes that
these point into. What is rare has statements of its own before that, in the same transaction.

A task that was put and ended in the same group is in no table. Times are microseconds of the store's clock.

Small bodies are in the rows of their tasks, others in a table of their own: a hub that starts reads no bodies, and is to
read few pages that have some.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final, Protocol, TypeAlias

from redpoll import serializers
from redpoll.bus.broker import outputs
from redpoll.bus.broker.outputs import Back, Brief, Dead, Declared, Ended, Kept, Keyed, Put, Taken, Write
from redpoll.bus.broker.queue import CANCEL
from redpoll.bus.broker.restore import Stored
from redpoll.bus.envelope import OutcomeKind
from redpoll.bus.records import QueueSpec

__all__ = [
    "SCHEMA",
    "TURN",
    "UPGRADES",
    "Clock",
    "Database",
    "Group",
    "Statement",
    "load",
    "load_tasks",
    "read_bodies",
    "read_outcome",
]

Statement: TypeAlias = tuple[str, tuple[Any, ...]]


class Database(Protocol):
    """A connection to SQLite, as far as it is used."""

    def execute(self, sql: str, values: tuple[Any, ...] = ..., /) -> Iterable[Any]:
        """Carry out a statement; its rows are in what this returns."""


_BITS: Final = (1 << 64) - 1
_MIDDLE: Final = 1 << 63
# A larger body is apart.
_APART: Final = 512

_msgpack: Final = serializers.get("msgpack")
_numbers: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode

UPGRADES: Final[Mapping[int, tuple[str, ...]]] = {
    1: ("CREATE TABLE schedules (name BLOB PRIMARY KEY, due INT, spec BLOB) WITHOUT ROWID",),
}
"""Statements that turn the tables of a format into those of the next one; part of `SCHEMA`."""

SCHEMA: Final = (
    "CREATE TABLE state (name TEXT, epoch INT, serial INT, clock INT)",
    "CREATE TABLE queues (number INTEGER PRIMARY KEY, name BLOB UNIQUE, spec BLOB, paused INT)",
    """CREATE TABLE tasks (serial INTEGER PRIMARY KEY, bits INT, queue INT, size INT, flags INT, priority INT, due INT,
        expires INT, attempts INT DEFAULT 0, lost INT DEFAULT 0, history BLOB, origin BLOB, body BLOB)""",
    "CREATE TABLE bodies (serial INTEGER PRIMARY KEY, body BLOB)",
    "CREATE TABLE taken (serial INTEGER PRIMARY KEY, token INT, accepted INT, peer BLOB)",
    """CREATE TABLE results (serial INTEGER PRIMARY KEY, bits INT, kind INT, size INT, token INT, ended INT,
        attempts INT, empty INT, more BLOB, body BLOB)""",
    """CREATE TABLE dead (number INTEGER PRIMARY KEY, serial INT UNIQUE, bits INT, queue INT, size INT, flags INT,
        priority INT, attempts INT, history BLOB, origin BLOB, body BLOB)""",
    """CREATE TABLE keys (queue INT, place INT, serial INT, bits INT, used INT, key BLOB, PRIMARY KEY (queue, place))
        WITHOUT ROWID""",
    "CREATE TABLE kept (number INTEGER PRIMARY KEY, subject BLOB UNIQUE, size INT, events BLOB)",
    *UPGRADES[1],
)


def _number_at(place: int) -> str:
    return f"json_extract(value, '$[{place}]')"


def _bytes_at(place: int) -> str:
    """The bytes between a number of a row and the next one."""
    start, end = _number_at(place), _number_at(place + 1)
    return f"coalesce(substr(new.data, {start} + 1, {end} - {start}), x'')"


def _columns(numbers: int, blobs: int) -> str:
    """The first numbers of a row, and the bytes between those that follow."""
    places = range(numbers + blobs)
    return ", ".join(_number_at(each) if each < numbers else _bytes_at(each) for each in places)


#: Made for each connection: the file knows nothing of it.
TURN: Final = (
    """CREATE TEMP VIEW turn AS SELECT 0 serial, 0 clock, 0 data, 0 puts, 0 large, 0 takes, 0 ends, 0 results,
        0 forgotten, 0 keys""",
    # Only numbers are put into it.
    f"""CREATE TEMP TRIGGER carry_out INSTEAD OF INSERT ON turn BEGIN
        DELETE FROM tasks WHERE serial IN (SELECT value FROM json_each(new.ends));
        DELETE FROM taken WHERE serial IN (SELECT value FROM json_each(new.ends));
        DELETE FROM bodies WHERE serial IN (SELECT value FROM json_each(new.ends));
        DELETE FROM results WHERE serial IN (SELECT value FROM json_each(new.forgotten));
        INSERT INTO tasks (serial, bits, queue, size, flags, priority, due, expires, body)
            SELECT {_columns(8, 1)} FROM json_each(new.puts);
        INSERT INTO tasks (serial, bits, queue, size, flags, priority, due, expires)
            SELECT {_columns(8, 0)} FROM json_each(new.large);
        INSERT INTO bodies SELECT json_extract(value, '$[0]'), {_bytes_at(8)} FROM json_each(new.large);
        INSERT OR REPLACE INTO taken (serial, token, accepted, peer) SELECT {_columns(3, 1)} FROM json_each(new.takes);
        INSERT OR REPLACE INTO results (serial, bits, kind, size, token, ended, attempts, empty, more, body)
            SELECT {_columns(8, 2)} FROM json_each(new.results);
        INSERT INTO keys (queue, place, serial, bits, used, key) SELECT {_columns(5, 1)} FROM json_each(new.keys);
        UPDATE state SET serial = new.serial, clock = new.clock;
    END""",  # noqa: S608
)
_INSERT: Final = "INSERT INTO turn VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
# The body of the task of a serial, which may be a dead letter.
_BODY: Final = """coalesce((SELECT body FROM bodies WHERE serial = {0}), (SELECT body FROM tasks WHERE serial = {0}),
    (SELECT body FROM dead WHERE serial = {0}))"""
_COPY: Final = f"INSERT INTO bodies SELECT ?2, {_BODY.format('?1')}"
_BURY: Final = f"""INSERT INTO dead (serial, bits, queue, size, flags, priority, attempts, history, origin, body)
    VALUES (?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, coalesce(?11, {_BODY.format("?1")}))"""  # noqa: S608
# Keys of a queue after which the oldest are looked at.
_KEYS: Final = 1_000


class Clock:
    """The clock of a store. It goes on where it was, and stands still where the system's was set back.

    Args:
        monotonic: The time of what is in writes, in seconds.
        wall: The system's time, in seconds.
        last: What it showed last, in microseconds.
    """

    __slots__ = ("_offset",)

    def __init__(self, monotonic: float, wall: float, last: int) -> None:
        self._offset = max(wall, (last + 1) / 1e6) - monotonic

    def stored(self, time: float) -> int:
        """The store's time, in microseconds, rounded down."""
        return int((time + self._offset) * 1e6)

    def loaded(self, time: int) -> float:
        """The time that a store's time is."""
        return time / 1e6 - self._offset


def _history(lines: tuple[str, ...]) -> Any:
    return _msgpack.encode(lines) if lines else None


def _number(number: int) -> bytes | None:
    return number.to_bytes(16, "big") if number else None


class Group:
    """Writes that are gathered into one transaction.

    Args:
        clock: Of the store.
        database: Holds what there was before.
        key_time: Seconds that a dedup key counts.
        keys: Dedup keys of a queue at most.

    Attributes:
        bytes: How much it is, about.
    """

    def __init__(self, clock: Clock, database: Database, key_time: float, keys: int) -> None:
        self._stored = clock.stored
        self._key_time, self._key_limit = key_time, keys
        self._queues: dict[str, int] = {}
        self._places: dict[int, int] = {}
        self._last_queue = 0
        for number, name, place in database.execute(
            "SELECT number, name, (SELECT max(place) FROM keys WHERE queue = number) FROM queues ORDER BY number"
        ):
            self._queues[name.decode()] = self._last_queue = number
            self._places[number] = place or 0
        ((self._serial,),) = database.execute("SELECT serial FROM state")
        self._rare: dict[type, Callable[[Any], object]] = {
            outputs.Accepted: self._accepted,
            outputs.Asked: self._asked,
            outputs.Back: self._back,
            outputs.Changed: self._changed,
            outputs.Moved: self._moved,
            outputs.Dead: self._dead,
            outputs.Buried: lambda write: self._unburied.append(write.id >> 64),
            outputs.Forgotten: self._forgotten,
            outputs.Keyed: self._keyed,
            outputs.Kept: self._kept,
            outputs.Scheduled: self._scheduled,
            outputs.Declared: self._declared,
            outputs.Deleted: self._deleted,
        }
        self._clear()

    def _clear(self) -> None:
        self.bytes = 0
        self._puts: dict[int, Put] = {}
        self._takes: dict[int, Taken] = {}
        self._accepts: set[int] = set()
        self._ends: list[int] = []
        self._results: dict[int, Ended] = {}
        self._forgets: list[int] = []
        self._keys: list[Keyed] = []
        self._unburied: list[int] = []
        # Tasks of this group that have the body of another one, which no table has lost yet.
        self._copies: dict[int, int] = {}
        self._statements: list[Statement] = []

    def _say(self, sql: str, *values: Any) -> None:
        self._statements.append((sql, values))

    # -- taking writes

    def add(self, writes: list[Write]) -> None:
        """Add the writes of a turn."""
        puts, takes = self._puts, self._takes
        for write in writes:
            kind = type(write)
            if kind is Put:
                puts[write[0]] = write  # type: ignore[assignment, index]
                if write[2] is None:  # type: ignore[misc]
                    self._copies[write.id] = self.source(write.origin)  # type: ignore[union-attr]
                else:
                    self.bytes += len(write[2])  # type: ignore[arg-type, misc]
            elif kind is Taken:
                takes[write[0]] = write  # type: ignore[assignment, index]
            elif kind is Ended:
                self._ended(write)  # type: ignore[arg-type]
            else:
                self._rare[kind](write)

    def source(self, task: int) -> int:
        """Return the number of the task whose body in the tables is that of a task, until this group is there."""
        return self._copies.get(task, task)

    def _ended(self, write: Ended) -> None:
        number = write.id
        self._takes.pop(number, None)
        if self._puts.pop(number, None) is None:
            self._ends.append(number >> 64)
        else:
            self._serial = max(self._serial, number >> 64)
        if write.keep:
            self._results[number] = write
            self.bytes += len(write.payload or b"")

    def _accepted(self, write: outputs.Accepted) -> None:
        if write.id in self._takes:
            self._accepts.add(write.id)
        else:
            self._say("UPDATE taken SET accepted = 1 WHERE serial = ?", write.id >> 64)

    def _asked(self, write: outputs.Asked) -> None:
        put = self._puts.get(write.id)
        if put is not None:
            self._puts[write.id] = put._replace(flags=put.flags | CANCEL)
        else:
            self._say("UPDATE tasks SET flags = flags | ? WHERE serial = ?", CANCEL, write.id >> 64)

    def _back(self, write: Back) -> None:
        number = write.id
        self._takes.pop(number, None)
        self._accepts.discard(number)
        put = self._puts.get(number)
        if put is not None:
            self._puts[number] = put._replace(
                due=write.due, attempts=write.attempts, history=write.history, lost=write.lost
            )
            return
        serial = number >> 64
        self._say("DELETE FROM taken WHERE serial = ?", serial)
        self._say(
            "UPDATE tasks SET due = ?, attempts = ?, history = ?, lost = ? WHERE serial = ?",
            None if write.due is None else self._stored(write.due),
            write.attempts,
            _history(write.history),
            write.lost,
            serial,
        )

    def _changed(self, write: outputs.Changed) -> None:
        self.bytes += len(write.payload)
        put = self._puts.get(write.id)
        if put is not None:
            self._puts[write.id] = put._replace(payload=write.payload)
            self._copies.pop(write.id, None)
            return
        serial = write.id >> 64
        self._say("DELETE FROM bodies WHERE serial = ?", serial)
        self._say("UPDATE tasks SET body = ? WHERE serial = ?", self._body(serial, write.payload), serial)

    def _body(self, serial: int, payload: Any) -> Any:
        """The body of a task's row: None where it is apart."""
        if len(payload) <= _APART:
            return payload
        self._say("INSERT INTO bodies VALUES (?, ?)", serial, payload)
        return None

    def _moved(self, write: outputs.Moved) -> None:
        put = self._puts.get(write.id)
        if put is not None:
            self._puts[write.id] = put._replace(queue=write.queue)
        else:
            self._say("UPDATE tasks SET queue = ? WHERE serial = ?", self._queues[write.queue], write.id >> 64)

    def _dead(self, write: Dead) -> None:
        self.bytes += len(write.payload or b"")
        self._say(
            _BURY,
            self.source(write.id) >> 64,
            write.id >> 64,
            (write.id & _BITS) - _MIDDLE,
            self._queues[write.queue],
            write.size,
            write.flags,
            write.priority,
            write.attempts,
            _history(write.history),
            _number(write.origin),
            write.payload,
        )

    def _forgotten(self, write: outputs.Forgotten) -> None:
        if self._results.pop(write.id, None) is None:
            self._forgets.append(write.id >> 64)

    def _keyed(self, write: Keyed) -> None:
        self._keys.append(write)

    def _kept(self, write: Kept) -> None:
        subject = write.subject.encode()
        self._say("DELETE FROM kept WHERE subject = ?", subject)
        if write.events:
            events = _msgpack.encode(write.events)
            self.bytes += len(events)
            self._say("INSERT INTO kept (subject, size, events) VALUES (?, ?, ?)", subject, write.limit, events)

    def _scheduled(self, write: outputs.Scheduled) -> None:
        name = write.name.encode()
        if write.values is None:
            self._say("DELETE FROM schedules WHERE name = ?", name)
        else:
            spec = _msgpack.encode(write.values)
            self.bytes += len(spec)
            self._say("INSERT OR REPLACE INTO schedules VALUES (?, ?, ?)", name, self._stored(write.due), spec)

    def _declared(self, write: Declared) -> None:
        name = write.spec.name
        number = self._queues.get(name)
        if number is None:
            self._last_queue += 1
            number = self._queues[name] = self._last_queue
            self._places[number] = 0
        self._say(
            "INSERT OR REPLACE INTO queues VALUES (?, ?, ?, ?)",
            number,
            name.encode(),
            _msgpack.encode(asdict(write.spec)),
            int(write.paused),
        )

    def _deleted(self, write: outputs.Deleted) -> None:
        number = self._queues.pop(write.queue)
        del self._places[number]
        self._keys = [each for each in self._keys if each.queue != write.queue]
        self._say("DELETE FROM queues WHERE number = ?", number)
        self._say("DELETE FROM keys WHERE queue = ?", number)

    # -- giving statements

    def take(self, now: float) -> list[Statement]:
        """The statements of one transaction, in order; it is empty then.

        Args:
            now: The time.
        """
        stored = self._stored
        queues = self._queues
        parts: list[Any] = []
        end = 0
        puts: list[Any] = []
        large: list[Any] = []
        for put in self._puts.values():
            number, queue, payload, size, flags, priority, due, expires, attempts, history, origin, lost = put
            serial = number >> 64
            row = (
                serial,
                (number & _BITS) - _MIDDLE,
                queues[queue],
                size,
                flags,
                priority,
                due if due is None else stored(due),
                expires if expires is None else stored(expires),
            )
            if attempts or history or origin or lost:
                if payload is None:
                    self._say(_COPY, self.source(number) >> 64, serial)
                else:
                    payload = self._body(serial, payload)
                rest = attempts, lost, _history(history), _number(origin), payload
                self._say("INSERT INTO tasks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", *row, *rest)
            else:
                start, end = end, end + len(payload)
                parts.append(payload)
                (large if end - start > _APART else puts).append((*row, start, end))
            self._serial = max(self._serial, serial)
        names: dict[str, tuple[int, int]] = {}
        takes: list[Any] = []
        for taken in self._takes.values():
            number, token, peer = taken
            span = names.get(peer)
            if span is None:
                name = peer.encode()
                span = names[peer] = end, end + len(name)
                parts.append(name)
                end += len(name)
            takes.append((number >> 64, token, int(number in self._accepts), *span))
        results: list[Any] = []
        for ended in self._results.values():
            number, _, kind, payload, size, detail, token, when, attempts, history, queue = ended
            more = _msgpack.encode((queue, detail, history))
            body = b"" if payload is None else payload
            start, middle = end, end + len(more)
            end = middle + len(body)
            parts += (more, body)
            serial = number >> 64
            bits = (number & _BITS) - _MIDDLE
            empty = int(payload is None)
            results.append((serial, bits, int(kind), size, token, stored(when), attempts, empty, start, middle, end))
        keys: list[Any] = []
        for keyed in self._keys:
            key = keyed.key.encode()
            start, end = end, end + len(key)
            parts.append(key)
            number, of = keyed.id, queues[keyed.queue]
            place = self._places[of] = self._places[of] + 1
            keys.append((of, place, number >> 64, (number & _BITS) - _MIDDLE, stored(keyed.when), start, end))
            if place % min(_KEYS, self._key_limit) == 0:
                self._prune(of, place, stored(keyed.when - self._key_time))
        values = (
            self._serial,
            stored(now),
            b"".join(parts),
            _numbers(puts) if puts else "[]",
            _numbers(large) if large else "[]",
            _numbers(takes) if takes else "[]",
            _numbers(self._ends) if self._ends else "[]",
            _numbers(results) if results else "[]",
            _numbers(self._forgets) if self._forgets else "[]",
            _numbers(keys) if keys else "[]",
        )
        # Nothing has its body any more.
        for serial in self._unburied:
            self._say("DELETE FROM dead WHERE serial = ?", serial)
        statements = self._statements
        statements.append((_INSERT, values))
        self._clear()
        return statements

    def _prune(self, queue: int, place: int, unused: int) -> None:
        """Remove the keys of a queue that count no more."""
        self._say("DELETE FROM keys WHERE queue = ? AND place <= ?", queue, place - self._key_limit)
        self._say(
            """DELETE FROM keys WHERE queue = ? AND used <= ? AND place IN
            (SELECT place FROM keys WHERE queue = ? ORDER BY place LIMIT ?)""",
            queue,
            unused,
            queue,
            2 * _KEYS,
        )


# -- reading


def _id(serial: int, bits: int) -> int:
    return (serial << 64) + bits + _MIDDLE


def _lines(history: bytes | None) -> tuple[str, ...]:
    return () if history is None else tuple(_msgpack.decode(history))


def load(database: Database, clock: Clock) -> Iterator[Write]:
    """The contents of the tables, as writes for `Broker.restored`; without the tasks, and without bodies."""
    queues: dict[int, str] = {}
    for key, spec, paused in database.execute("SELECT number, spec, paused FROM queues ORDER BY number"):
        fields = _msgpack.decode(spec)
        declared = QueueSpec(**{**fields, "topics": tuple(fields["topics"])})
        queues[key] = declared.name
        yield Declared(declared, bool(paused))
    for key, serial, bits, used, text in database.execute(
        "SELECT queue, serial, bits, used, key FROM keys ORDER BY queue, place"
    ):
        yield Keyed(queues[key], text.decode(), _id(serial, bits), clock.loaded(used))
    names: dict[str, str] = {}
    for serial, bits, size, token, ended, more in database.execute(
        "SELECT serial, bits, size, token, ended, more FROM results ORDER BY ended, serial"
    ):
        queue = _msgpack.decode(more)[0]
        yield Brief(_id(serial, bits), names.setdefault(queue, queue), size, token, clock.loaded(ended))
    for serial, bits, key, size, flags, priority, attempts, history, origin in database.execute(
        "SELECT serial, bits, queue, size, flags, priority, attempts, history, origin FROM dead ORDER BY number"
    ):
        id_, first = _id(serial, bits), int.from_bytes(origin or b"", "big")
        yield Dead(id_, queues[key], None, size, _lines(history), flags, priority, attempts, first)
    for subject, size, events in database.execute("SELECT subject, size, events FROM kept ORDER BY number"):
        yield Kept(subject.decode(), size, tuple((body, length) for body, length in _msgpack.decode(events)))
    for name, due, spec in database.execute("SELECT name, due, spec FROM schedules ORDER BY name"):
        yield outputs.Scheduled(name.decode(), clock.loaded(due), tuple(_msgpack.decode(spec)))


def load_tasks(database: Database, clock: Clock) -> Iterator[Stored]:
    """The tasks in the tables, without bodies."""
    queues = {key: name.decode() for key, name in database.execute("SELECT number, name FROM queues")}
    hands = {serial: hand for serial, *hand in database.execute("SELECT serial, token, accepted, peer FROM taken")}
    loaded = clock.loaded
    for serial, bits, queue, size, flags, priority, due, expires, attempts, lost, history, origin in database.execute(
        """SELECT serial, bits, queue, size, flags, priority, due, expires, attempts, lost, history, origin FROM tasks
        ORDER BY serial"""
    ):
        number = (serial << 64) + bits + _MIDDLE
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
        )
        if serial in hands:
            token, accepted, peer = hands[serial]
            yield put, Taken(number, token, peer.decode()), bool(accepted)
        else:
            yield put, None, False


def read_bodies(database: Database, tasks: Sequence[int]) -> list[bytes | None]:
    """Read the bodies of tasks, in one step for all; None of one that is in no table.

    Each step would wait for the interpreter lock.
    """
    ((sizes, data),) = database.execute(_BODIES, (_numbers([each >> 64 for each in tasks]),))
    view = memoryview(data or b"")
    found: list[bytes | None] = []
    start = 0
    for size in json.loads(sizes):
        if size is None:
            found.append(None)
        else:
            found.append(bytes(view[start : start + size]))
            start += size
    return found


# Joined as the text that they are not, byte by byte.
_BODIES: Final = f"""SELECT json_group_array(length(body)), cast(group_concat(body, '') AS BLOB)
    FROM (SELECT {_BODY.format("value")} AS body FROM json_each(?) LIMIT -1)"""  # noqa: S608


def read_outcome(database: Database, clock: Clock, task: int) -> Ended | None:
    """Read the outcome of a task; None if it is in no table."""
    for bits, kind, size, token, ended, attempts, empty, more, body in database.execute(
        "SELECT bits, kind, size, token, ended, attempts, empty, more, body FROM results WHERE serial = ?",
        (task >> 64,),
    ):
        queue, detail, history = _msgpack.decode(more)
        outcome = OutcomeKind(kind), None if empty else body, size, detail, token, clock.loaded(ended)
        return Ended(_id(task >> 64, bits), True, *outcome, attempts, tuple(history), queue)
    return None
