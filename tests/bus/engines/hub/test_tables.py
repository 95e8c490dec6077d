"""What is read from the tables is what was written there."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Self

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from redpoll.bus import OutcomeKind, QueueSpec
from redpoll.bus.broker.broker import Broker
from redpoll.bus.broker.kept import Dedup
from redpoll.bus.broker.outputs import (
    Accepted,
    Asked,
    Back,
    Brief,
    Buried,
    Changed,
    Dead,
    Declared,
    Deleted,
    Ended,
    Forgotten,
    Kept,
    Keyed,
    Moved,
    Put,
    Scheduled,
    Taken,
    Write,
)
from redpoll.bus.broker.queue import Consumer, Peer, Task
from redpoll.bus.broker.restore import Restored
from redpoll.bus.engines.hub import bodies, group
from redpoll.bus.engines.hub.bodies import Bodies, File, references
from redpoll.bus.engines.hub.group import Group
from redpoll.bus.engines.hub.reading import load, load_tasks, read_bodies, read_outcome
from redpoll.bus.engines.hub.recent import Recent
from redpoll.bus.engines.hub.tables import SCHEMA, TURN, Clock
from tests.bus.broker.model import LIMITS, BrokerModel

PLAN = ("q", b"x", 1, (0, 0.0, None, 5.0, None, False, False, None), None, "0 3 * * *")


class MemoryFile(File):
    """A file without a disk."""

    def __init__(self) -> None:
        self.contents = bytearray()

    def write(self, offset: int, data: Any) -> None:
        """Write data, and zeros before it where there is nothing."""
        self.contents += bytes(max(0, offset - len(self.contents)))
        self.contents[offset : offset + len(data)] = data

    def read(self, offset: int, size: int) -> bytes:
        """Read bytes."""
        return bytes(self.contents[offset : offset + size])

    def cut(self, size: int) -> int:
        """Make it shorter."""
        found = len(self.contents)
        del self.contents[size:]
        return found

    def sync(self) -> None:
        """Do nothing."""


class Disk:
    """All writes, and tables to which they go: what is read from these has to be as good.

    Args:
        key_time: Seconds that a key counts.
        keys: Keys of a queue at most.
    """

    def __init__(self, key_time: float = 3_600.0, keys: int = 1_000_000) -> None:
        self.writes: list[Write] = []
        self.keys = key_time, keys
        self.file = MemoryFile()
        self.database = sqlite3.connect(":memory:", isolation_level=None)
        for statement in (*SCHEMA, "INSERT INTO state VALUES ('', 1, 0, 0)", *TURN):
            self.database.execute(statement)
        self.opened()

    def __del__(self) -> None:
        """Close the database, which warns otherwise from Python 3.13 on."""
        self.database.close()

    def opened(self, monotonic: float = 0.0, wall: float = 1e9) -> None:
        """Open it, at a time."""
        ((last,),) = self.database.execute("SELECT clock FROM state")
        self.clock = Clock(monotonic, wall, last)
        self.grouped()

    def grouped(self) -> None:
        """Begin to gather writes."""
        self.bodies = Bodies(self.file, self.database)
        self.bodies.look()
        self.group = Group(self.clock, self.database, self.bodies, *self.keys)

    def put(self, *turns: Iterable[Write], now: float = 0.0) -> None:
        """Write turns, as one transaction."""
        for writes in turns:
            self.writes += writes
            self.group.add(list(writes))
        statements = self.group.take(now)
        self.bodies.write()
        for statement in statements:
            self.database.execute(*statement)
        self.bodies.written()

    def __iadd__(self, writes: list[Write]) -> Self:
        """Write a turn."""
        self.put(writes)
        return self

    def rows(self, table: str) -> int:
        """How many rows a table has."""
        ((count,),) = self.database.execute(f"SELECT count(*) FROM {table}")
        return int(count)

    def check(self) -> None:
        """Compare what is read with what was written."""
        expected, found = Restored(filled(self.writes)), Restored(load(self.database, self.clock))
        found.tasks = {each[0].id: each for each in load_tasks(self.database, self.clock)}
        assert list(found.queues.items()) == list(expected.queues.items())
        assert list(found.dead.values()) == [each._replace(payload=None) for each in expected.dead.values()]
        assert list(found.tasks) == list(expected.tasks)
        for number, (put, taken, accepted) in expected.tasks.items():
            read = found.tasks[number]
            assert _same(read[0], put._replace(payload=None))
            assert read[1:] == (taken, accepted)
        payloads = {number: each[0].payload for number, each in expected.tasks.items()}
        payloads |= {number: dead.payload for number, dead in expected.dead.items()}
        assert read_bodies(self.database, self.bodies, list(payloads)) == list(payloads.values())
        assert found.results.keys() == expected.results.keys()
        for number, ended in expected.results.items():
            assert isinstance(ended, Ended)
            outcome = read_outcome(self.database, self.bodies, self.clock, number)
            assert outcome is not None
            assert _same(outcome, ended)
            assert _same(found.results[number], brief(ended))
        assert list(found.kept.items()) == [(name, each) for name, each in expected.kept.items() if each.events]
        ((serial,),) = self.database.execute("SELECT serial FROM state")
        assert serial == max((each.id >> 64 for each in self.writes if type(each) is Put), default=0)
        for name in expected.queues:
            known, read_keys = Dedup(*self.keys), Dedup(*self.keys)
            last = 0.0
            for keys, restored in ((known, expected), (read_keys, found)):
                for each in restored.keys:
                    if each.queue == name:
                        keys.add(each.key, each.id, each.when)
                        last = max(last, each.when)
            for key in {each.key for each in expected.keys}:
                assert read_keys.find(key, last) == known.find(key, last)
        assert self.rows("taken") == sum(taken is not None for _, taken, _ in expected.tasks.values())


def brief(ended: Ended) -> Brief:
    """Make the brief form of an outcome."""
    return Brief(ended.id, ended.queue, ended.size, ended.token, ended.when)


def filled(writes: Iterable[Write]) -> Iterator[Write]:
    """Give writes without a payload that of the task which they mean, as the tables have to."""
    bodies: dict[int, Any] = {}
    for write in writes:
        if isinstance(write, Put | Changed | Dead):
            payload = write.payload
            if payload is None:
                payload = bodies[write.origin if isinstance(write, Put) else write.id]
            bodies[write.id] = payload
            yield write._replace(payload=payload)
        else:
            yield write


def _same(found: tuple[Any, ...], expected: tuple[Any, ...]) -> bool:
    """Whether two writes are equal, but for what is lost when times become those of a clock."""
    return all(
        one == other or (isinstance(one, float) and isinstance(other, float) and -5e-7 < other - one < 2e-6)
        for one, other in zip(found, expected, strict=True)
    )


class StoredModel(BrokerModel):
    """The model of a broker, with tables for a disk."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = disk = Disk(LIMITS.dedup_time, LIMITS.dedup_keys)
        stand_in: Any = disk
        self.disk = stand_in
        self.recent = Recent(self.broker, 0)

    def payload(self, task: Task) -> Any:
        """Return the payload of a task; one that the broker has no more is in the tables."""
        if task.payload is not None:
            return task.payload
        (found,) = read_bodies(self.tables.database, self.tables.bodies, [self.tables.group.source(task.id)])
        return found

    def delivered(self, peer: Peer, consumer: Consumer, token: int, task: Task) -> None:
        """Check that its body is there, or will be."""
        super().delivered(peer, consumer, token, task)
        waiting = self.broker.out.writes
        assert waiting is not None
        if task.payload is None:
            payloads = {each.id: each.payload for each in filled((*self.tables.writes, *waiting)) if type(each) is Put}
            self.tables.group.add(list(waiting))
            assert self.payload(task) == payloads[task.id]
        self.tables.grouped()

    def written(self, writes: list[Write]) -> None:
        """Drop what the tables have."""
        self.recent.stored(writes)

    def restored(self) -> Broker:
        """Start the broker again, after a look at whether the tables have all."""
        self.tables.grouped()
        self.tables.check()
        database, clock = self.tables.database, self.tables.clock
        ((serial,),) = database.execute("SELECT serial FROM state")
        broker = Broker.restored(
            load(database, clock),
            self.now,
            "s",
            self.bits,
            LIMITS,
            epoch=self.epoch,
            tasks=load_tasks(database, clock),
            serial=serial,
        )
        self.recent = Recent(broker, 0)
        return broker

    def teardown(self) -> None:
        """Close the database."""
        self.tables.database.close()


@pytest.fixture(params=[False, True], ids=["in tables", "in the file"])
def in_file(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Let each body of a byte be a large one, whose room is soon that of another, or each body be small."""
    found: bool = request.param
    if found:
        monkeypatch.setattr(group, "_APART", 0)
        monkeypatch.setattr(bodies, "_LEAST", 1)
        monkeypatch.setattr(bodies, "_FRESH", 0)
    return found


@pytest.mark.usefixtures("in_file")
def test_a_broker_is_as_it_was() -> None:
    """Whatever a broker and its workers do, what is read after a crash adds up to all that was written."""
    run_state_machine_as_test(StoredModel, settings=settings(stateful_step_count=30, max_examples=50))


def number(serial: int, bits: int = 5) -> int:
    """Make a task's number."""
    return (serial << 64) + bits


def task(serial: int, payload: bytes = b"body", **fields: Any) -> Put:
    """Make the write of a new task."""
    plain = Put(number(serial), "q", payload, len(payload), 9, 0, None, None, 0, (), 0)
    return plain._replace(**fields)


def ended(serial: int, payload: bytes | None = b"result", keep: bool = True) -> Ended:
    """Make the write of an outcome."""
    size = len(payload or b"")
    return Ended(number(serial), keep, OutcomeKind.RESULT, payload, size, "why", 7, 3.0, 1, ("slow",), "q")


Q, OTHER = Declared(QueueSpec("q"), False), Declared(QueueSpec("other", priorities=3, topics=("a.#", "b")), True)


def test_every_field_survives(in_file: bool) -> None:
    """Each write comes back as it was, its extremes too: no body, a large one, all bits, text of any sort."""
    disk = Disk()
    large = bytes(range(256)) * 300
    history = ("worker 'ä' was lost", "\0", "")
    extra: dict[str, Any] = {"attempts": 3, "history": history, "origin": number(1, 2**64 - 1), "lost": 2}
    disk.put(
        [Q, OTHER, Kept("a.ü", 2, ((b"1", 1), (large, 2))), Kept("none", 1, ()), Keyed("q", "k\0é", number(1), 1.0)]
    )
    disk.put(
        [
            task(2, b"", id=number(2, 0)),
            task(3, large, id=number(3, 2**64 - 1)),
            task(4, **extra),
            task(5, large, **extra),
        ]
    )
    disk.put(
        [task(6, priority=2, queue="other", due=5.25, expires=0.5, flags=15), Taken(number(4), (1 << 40) + 1, "pär")]
    )
    disk.put(
        [
            Accepted(number(4)),
            task(7),
            Taken(number(7), 2, "pär"),
            Accepted(number(7)),
            Taken(number(3, 2**64 - 1), 3, "x"),
        ]
    )
    disk.put([ended(8), ended(9, None), ended(10, b""), ended(11, large)])
    disk.put([Dead(number(12), "q", large, 9, history, 9, 2, 3, number(8)), Dead(number(13), "q", b"", 0, ())])
    disk.check()
    assert disk.rows("bodies") == (5 if in_file else 2)
    assert len(references(disk.database)) == (8 if in_file else 4)


def test_changes_in_any_group(in_file: bool) -> None:
    """What happens to a task adds up to the same in the transaction of its put, in another, and in several."""
    large = b"x" * 5_000
    turns: list[list[Write]] = [
        [Q, OTHER, task(1), task(2), task(3), task(4), Keyed("q", "k", number(4), 0.0)],
        [Taken(number(1), 1, "w"), Taken(number(2), 2, "w"), Accepted(number(2)), Taken(number(3), 3, "w")],
        [Asked(number(1)), Back(number(1), 5.0, 1, ("slow",), 1), Changed(number(1), large)],
        [Back(number(2), None, 0, ()), Taken(number(2), 4, "v"), Moved(number(4), "other")],
        [Changed(number(1), b"small"), Changed(number(3), large), Dead(number(9), "q", b"", 0, ())],
        [ended(3), ended(2, keep=False), Buried(number(9)), Dead(number(10), "q", b"", 0, ())],
        [Forgotten(number(3)), Kept("s", 1, ((b"1", 1),)), Kept("s", 1, ((b"2", 1),)), ended(8)],
        [Scheduled("daily", 9.5, PLAN), Scheduled("a", 1.0, PLAN), Scheduled("daily", 19.5, PLAN)],
        [Scheduled("a", 0.0, None)],
        [ended(4), Deleted("other"), ended(1), Deleted("q"), Buried(number(10)), Kept("s", 0, ())],
        [Declared(replace(Q.spec, ttl=4.0), True), task(11, queue="q"), Keyed("q", "k", number(11), 0.0)],
    ]
    for size in range(1, len(turns) + 1):
        for first in range(size):
            disk = Disk()
            disk.put(*turns[:first])
            disk.check()
            for start in range(first, len(turns), size):
                disk.put(*turns[start : start + size])
                disk.check()
            assert disk.rows("bodies") == in_file


def test_last_events_are_one_statement_and_keep_their_order() -> None:
    """Subjects are read in the order in which they were published to last, whatever a transaction has of each."""
    turns: list[list[Write]] = [
        [Kept(name, 2, ((name.encode(), 1),)) for name in "abcd"],
        [Kept("a", 2, ((b"a", 1), (b"x", 1))), Kept("e", 1, ((b"e", 1),)), Kept("b", 0, ())],
        [Kept("e", 1, ((b"f", 1),)), Kept("d", 0, ()), Kept("d", 1, ((b"d", 1),)), Kept("g", 1, ((b"g", 1),))],
        [Kept("g", 0, ()), Kept("c", 1, ((b"h" * 5_000, 1),))],
    ]
    for size in range(1, len(turns) + 1):
        disk = Disk()
        for start in range(0, len(turns), size):
            disk.put(*turns[start : start + size])
        found = [
            (each.subject, each.events[-1][0][:1]) for each in load(disk.database, disk.clock) if isinstance(each, Kept)
        ]
        assert found == [("a", b"x"), ("e", b"f"), ("d", b"d"), ("c", b"h")]
    group = Disk().group
    group.add([Kept("a", 1, ((b"1", 1),)), Kept("b", 1, ((b"2", 1),)), Kept("a", 1, ((b"3", 1),))])
    assert len(group.take(0.0)) == 1


def test_tasks_of_one_group_are_in_no_table() -> None:
    """A task that is put and ended in one transaction is not inserted; its outcome is, and its serial counts."""
    disk = Disk()
    disk.put([Q])
    changes = disk.database.total_changes
    disk.put([task(5), Taken(number(5), 1, "w")], [ended(5, keep=False)])
    assert disk.database.total_changes == changes + 1
    disk.check()
    disk.put([task(6), Taken(number(6), 1, "w")], [ended(6)])
    disk.check()
    assert disk.rows("results") == 1


def test_a_turn_is_one_statement() -> None:
    """What is frequent takes one statement, however much it is."""
    disk = Disk()
    disk.put([Q])
    for first in range(10, 400, 100):
        several = range(first, first + 100)
        disk.group.add([task(each) for each in several])
        disk.group.add([Taken(number(each), 1, "w") for each in several])
        disk.group.add([ended(each) for each in several[:50]])
        disk.group.add([Keyed("q", str(each), number(each), 0.0) for each in several])
        disk.group.add([Forgotten(number(each)) for each in range(9)])
        assert len(disk.group.take(0.0)) == 1


def test_keys_leave() -> None:
    """Keys of a queue are no more than its limit, and those that are over leave with the next ones."""
    disk = Disk(key_time=10.0, keys=50)
    disk.put([Q, OTHER, Keyed("other", "stays", number(1), 0.0)])
    for each in range(500):
        disk.put([Keyed("q", f"k{each}", number(each + 1), each / 100)])
        disk.check() if each % 40 == 0 else None
    assert disk.rows("keys") <= 101
    for each in range(50):
        disk.put([Keyed("q", f"n{each}", number(each + 501), 100.0)])
    assert disk.rows("keys") == 51


def test_times_never_grow() -> None:
    """A time left to wait is not longer after a restart, whatever became of the clock; what passed meanwhile counts."""
    disk = Disk()
    disk.put([Q, task(1, due=100.0, expires=200.0)], now=10.0)
    for monotonic, wall, expected in (
        (5.0, 1e9 + 10.0, 95.0),  # at once
        (5.0, 1e9 + 40.0, 65.0),  # half a minute later
        (7_000.0, 1e9 - 1e6, 7_090.0),  # set back
        (5.0, 1e9 + 1e7, -9_999_895.0),  # set forward
    ):
        disk.opened(monotonic, wall)
        ((put, _, _),) = load_tasks(disk.database, disk.clock)
        assert put.due is not None
        assert put.expires is not None
        assert abs(put.due - expected) < 1e-5
        assert put.due <= expected
        assert abs(put.expires - put.due - 100.0) < 1e-5


def test_the_key_of_a_task_that_lives_stays() -> None:
    """A key whose time is over leaves with the next ones only once its task has ended."""
    disk = Disk(key_time=10.0, keys=50)
    disk.put([Q, task(1000), Keyed("q", "lives", number(1000), 0.0)])
    keys = iter(range(200))
    for ends in ([], [ended(1000)]):
        disk.put(ends)
        for each in itertools.islice(keys, 40):
            disk.put([Keyed("q", f"k{each}", number(each + 1), 100.0 + each)])
        found = [each.key for each in Restored(load(disk.database, disk.clock)).keys]
        assert ("lives" in found) is not bool(ends)
        disk.check()
