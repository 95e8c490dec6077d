"""The tables of a hub's store, their numbers and their times, and the view through which most is written.

A statement of SQLite gives up the interpreter lock, and a busy event loop is slow to give it back: what is frequent goes
into one `INSERT`, into a view whose trigger carries it out. Its columns are JSON arrays of numbers, and one of bytes that
these point into.

Times are microseconds of the store's clock. The number of a task is that of its row, with 64 more bits.

Small bodies are in the rows of their tasks, others in a table of their own: a hub that starts reads no bodies, and is to
read few pages that have some. In place of a large one is a text, its reference: see `redpoll.bus.engines.hub.bodies`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

from redpoll import serializers

__all__ = [
    "BODY",
    "LARGE",
    "SCHEMA",
    "TURN",
    "UPGRADES",
    "Clock",
    "Database",
    "bits_of",
    "msgpack",
    "number_of",
    "numbers",
    "numbers_of",
    "pack_numbers",
]

_BITS: Final = (1 << 64) - 1
_MIDDLE: Final = 1 << 63

msgpack: Final = serializers.get("msgpack")
"""The serializer of columns that have no type of their own."""
numbers: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
"""The JSON of arrays of numbers."""


class Database(Protocol):
    """A connection to SQLite, as far as it is used."""

    def execute(self, sql: str, values: tuple[Any, ...] = ..., /) -> Iterable[Any]:
        """Carry out a statement; its rows are in what this returns."""


LARGE: Final = ("bodies", "results", "dead")
"""The tables with bodies that may be references."""

UPGRADES: Final[Mapping[int, tuple[str, ...]]] = {
    1: ("CREATE TABLE schedules (name BLOB PRIMARY KEY, due INT, spec BLOB) WITHOUT ROWID",),
    # The numbers of the tasks that one comes after.
    2: ("ALTER TABLE tasks ADD COLUMN parents BLOB", "ALTER TABLE dead ADD COLUMN parents BLOB"),
    # References, which no body has to be read for.
    3: tuple(f"CREATE INDEX large_{each} ON {each} (body) WHERE typeof(body) = 'text'" for each in LARGE),
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
    *UPGRADES[2],
    *UPGRADES[3],
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


# The effects of each array of a turn. No two of them are about the same rows, so their order does not matter.
_PARTS: Final = {
    "puts": f"""INSERT INTO tasks (serial, bits, queue, size, flags, priority, due, expires, body)
        SELECT {_columns(8, 1)} FROM json_each(new.puts);""",  # noqa: S608
    "large": f"""INSERT INTO tasks (serial, bits, queue, size, flags, priority, due, expires)
        SELECT {_columns(8, 0)} FROM json_each(new.large);
        INSERT INTO bodies SELECT json_extract(value, '$[0]'), {_bytes_at(8)} FROM json_each(new.large);""",  # noqa: S608
    "takes": f"""INSERT OR REPLACE INTO taken (serial, token, accepted, peer)
        SELECT {_columns(3, 1)} FROM json_each(new.takes);""",  # noqa: S608
    "ends": """DELETE FROM tasks WHERE serial IN (SELECT value FROM json_each(new.ends));
        DELETE FROM taken WHERE serial IN (SELECT value FROM json_each(new.ends));
        DELETE FROM bodies WHERE serial IN (SELECT value FROM json_each(new.ends));""",
    "results": f"""INSERT OR REPLACE INTO results
        (serial, bits, kind, size, token, ended, attempts, empty, more, body)
        SELECT {_columns(8, 2)} FROM json_each(new.results);""",  # noqa: S608
    "forgotten": "DELETE FROM results WHERE serial IN (SELECT value FROM json_each(new.forgotten));",
    "keys": f"""INSERT INTO keys (queue, place, serial, bits, used, key)
        SELECT {_columns(5, 1)} FROM json_each(new.keys);""",  # noqa: S608
    "kept": f"""INSERT OR REPLACE INTO kept (size, subject, events)
        SELECT {_columns(1, 2)} FROM json_each(new.kept);""",  # noqa: S608
}

#: Made for each connection: the file knows nothing of it. A turn has few of the arrays, and the others cost nothing.
TURN: Final = (
    f"CREATE TEMP VIEW turn AS SELECT 0 serial, 0 clock, 0 data, {', '.join(f'0 {each}' for each in _PARTS)}",
    # Only numbers are put into it.
    *(
        f"CREATE TEMP TRIGGER {each} INSTEAD OF INSERT ON turn WHEN new.{each} IS NOT NULL BEGIN {part} END"
        for each, part in _PARTS.items()
    ),
    """CREATE TEMP TRIGGER state INSTEAD OF INSERT ON turn BEGIN
        UPDATE state SET serial = new.serial, clock = new.clock;
    END""",
)
BODY: Final = """coalesce((SELECT body FROM bodies WHERE serial = {0}), (SELECT body FROM tasks WHERE serial = {0}),
    (SELECT body FROM dead WHERE serial = {0}))"""
"""The body of the task of a serial, which may be a dead letter."""


def bits_of(task: int) -> int:
    """Return what is beside the serial in the number of a task, as SQLite keeps it."""
    return (task & _BITS) - _MIDDLE


def number_of(serial: int, bits: int) -> int:
    """Return the number of a task."""
    return (serial << 64) + bits + _MIDDLE


def pack_numbers(tasks: tuple[int, ...]) -> bytes | None:
    """Return the numbers of tasks as a column has them; None of none."""
    return b"".join(each.to_bytes(16) for each in tasks) or None


def numbers_of(column: bytes | None) -> tuple[int, ...]:
    """Return the numbers of tasks that a column has."""
    found = column or b""
    return tuple(int.from_bytes(found[start : start + 16]) for start in range(0, len(found), 16))


class Clock:
    """The clock of a store. It continues where it was, and stops where the system's was set back.

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
