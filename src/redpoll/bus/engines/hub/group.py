"""The writes of one transaction: whatever they add up to, in one statement.

What is rare has statements of its own before that one, in the same transaction. A task that was put and ended in the same
group is in no table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final, TypeAlias

from redpoll.bus.broker import outputs
from redpoll.bus.broker.outputs import Back, Dead, Declared, Ended, Kept, Keyed, Put, Taken, Write
from redpoll.bus.broker.queue import CANCEL
from redpoll.bus.engines.hub.bodies import Bodies
from redpoll.bus.engines.hub.tables import BODY, Clock, Database, bits_of, msgpack, numbers, pack_numbers

__all__ = ["Group", "Statement"]

Statement: TypeAlias = tuple[str, tuple[Any, ...]]

# A larger body is apart.
_APART: Final = 512
_INSERT: Final = "INSERT INTO turn VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_COPY: Final = f"INSERT INTO bodies SELECT ?2, {BODY.format('?1')}"
_BURY: Final = f"""INSERT INTO dead (serial, bits, queue, size, flags, priority, attempts, history, origin, body, parents)
    VALUES (?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, coalesce(?11, {BODY.format("?1")}), ?12)"""  # noqa: S608
_RESULT: Final = "INSERT OR REPLACE INTO results VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
# Keys of a queue after which the oldest are looked at.
_KEYS: Final = 1_000


def _history(lines: tuple[str, ...]) -> Any:
    return msgpack.encode(lines) if lines else None


def _number(number: int) -> bytes | None:
    return number.to_bytes(16, "big") if number else None


class Group:
    """Writes that are gathered into one transaction.

    Args:
        clock: Of the store.
        database: Holds what there was before.
        bodies: Takes large bodies.
        key_time: Seconds that a dedup key counts.
        keys: Dedup keys of a queue at most.

    Attributes:
        bytes: How much it is, about.
    """

    def __init__(self, clock: Clock, database: Database, bodies: Bodies, key_time: float, keys: int) -> None:
        self._stored = clock.stored
        self._bodies = bodies
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
        # The subject that was published to least recently is the first.
        self._events: dict[str, Kept] = {}
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
        self._say("INSERT INTO bodies VALUES (?, ?)", serial, self._bodies.place(payload))
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
            bits_of(write.id),
            self._queues[write.queue],
            write.size,
            write.flags,
            write.priority,
            write.attempts,
            _history(write.history),
            _number(write.origin),
            None if write.payload is None else self._bodies.place(write.payload),
            pack_numbers(write.after),
        )

    def _forgotten(self, write: outputs.Forgotten) -> None:
        if self._results.pop(write.id, None) is None:
            self._forgets.append(write.id >> 64)

    def _keyed(self, write: Keyed) -> None:
        self._keys.append(write)

    def _kept(self, write: Kept) -> None:
        self._events.pop(write.subject, None)
        if write.events:
            self._events[write.subject] = write
            self.bytes += sum(size for _, size in write.events)
        else:
            self._say("DELETE FROM kept WHERE subject = ?", write.subject.encode())

    def _scheduled(self, write: outputs.Scheduled) -> None:
        name = write.name.encode()
        if write.values is None:
            self._say("DELETE FROM schedules WHERE name = ?", name)
        else:
            spec = msgpack.encode(write.values)
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
            msgpack.encode(asdict(write.spec)),
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
        least = self._bodies.least
        parts: list[Any] = []
        end = 0
        puts: list[Any] = []
        large: list[Any] = []
        for put in self._puts.values():
            number, queue, payload, size, flags, priority, due, expires, attempts, history, origin, lost, after = put
            serial = number >> 64
            row = (
                serial,
                bits_of(number),
                queues[queue],
                size,
                flags,
                priority,
                due if due is None else stored(due),
                expires if expires is None else stored(expires),
            )
            if attempts or history or origin or lost or after or len(payload) >= least:
                if payload is None:
                    self._say(_COPY, self.source(number) >> 64, serial)
                else:
                    payload = self._body(serial, payload)
                rest = attempts, lost, _history(history), _number(origin), payload, pack_numbers(after)
                self._say("INSERT INTO tasks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", *row, *rest)
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
            more = msgpack.encode((queue, detail, history))
            body = b"" if payload is None else payload
            row = number >> 64, bits_of(number), int(kind), size, token, stored(when), attempts, int(payload is None)
            if len(body) >= least:
                self._say(_RESULT, *row, more, self._bodies.place(body))
                continue
            start, middle = end, end + len(more)
            end = middle + len(body)
            parts += (more, body)
            results.append((*row, start, middle, end))
        keys: list[Any] = []
        for keyed in self._keys:
            key = keyed.key.encode()
            start, end = end, end + len(key)
            parts.append(key)
            number, of = keyed.id, queues[keyed.queue]
            place = self._places[of] = self._places[of] + 1
            keys.append((of, place, number >> 64, bits_of(number), stored(keyed.when), start, end))
            if place % min(_KEYS, self._key_limit) == 0:
                self._prune(of, place, stored(keyed.when - self._key_time))
        kept: list[Any] = []
        for subject, limit, events in self._events.values():
            name, packed = subject.encode(), msgpack.encode(events)
            start, middle = end, end + len(name)
            end = middle + len(packed)
            parts += (name, packed)
            kept.append((limit, start, middle, end))
        arrays = puts, large, takes, self._ends, results, self._forgets, keys, kept
        values = (
            self._serial,
            stored(now),
            b"".join(parts),
            *(numbers(each) if each else None for each in arrays),
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
            """DELETE FROM keys WHERE queue = ? AND used <= ? AND serial NOT IN (SELECT serial FROM tasks) AND place IN
            (SELECT place FROM keys WHERE queue = ? ORDER BY place LIMIT ?)""",
            queue,
            unused,
            queue,
            2 * _KEYS,
        )
