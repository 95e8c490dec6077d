"""Tasks at set times."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from redpoll.bus.broker import Broker, Limits
from redpoll.bus.broker.outputs import Put, Scheduled
from redpoll.bus.broker.queue import PLAIN
from redpoll.bus.broker.schedules import Schedule
from redpoll.errors import ConfigError, NoRoute, QueueFull
from tests.bus.broker.support import Desk


def plan(desk: Desk, name: str = "s", every: float | None = 10.0, cron: str | None = None, **more: Any) -> Schedule:
    """Set a schedule."""
    made = Schedule(name, more.get("queue", "q"), b"x", 1, more.get("options", PLAIN), every, cron)
    made.zone, made.missed = more.get("zone", "UTC"), more.get("missed", "once")
    desk.broker.schedules.set(made, desk.now)
    return made


def test_it_fires_in_its_rhythm() -> None:
    """A task is put there each time, the first of them after one; a broker that was late keeps the rhythm."""
    desk = Desk()
    plan(desk)
    desk.wait(9)
    assert desk.queue.count == 0
    desk.wait(21)
    assert desk.queue.count == 3
    # 60 is over, and so are 40 and 50.
    desk.now = 64.0
    desk.broker.advance(desk.now)
    assert desk.queue.count == 4
    assert desk.broker.schedules.found["s"].due == 70.0


@pytest.mark.parametrize("every", [1e-12, 0.09])
def test_too_often(every: float) -> None:
    """A schedule has a shortest time, which the clock can tell: one below it is refused."""
    with pytest.raises(ConfigError, match=r"at least 0\.1 seconds"):
        plan(Desk(), every=every)


@pytest.mark.parametrize("waiting", [0, 1])
def test_a_disk_without_room(waiting: int) -> None:
    """While the disk has no room a time is left out, and nothing is written: behind a restart it is one that was missed."""
    desk = Desk(journal=True, max_length=1)
    plan(desk)
    for _ in range(waiting):
        desk.submit()
    asked: list[int] = []

    def full(size: int) -> bool:
        asked.append(size)
        return False

    desk.broker.schedules.has_room = full
    desk.broker.out.take_writes()
    desk.wait(21)
    # Only what will be put takes room.
    assert asked == [1 - waiting] * 2
    assert desk.queue.count == waiting
    assert desk.broker.out.take_writes() == []
    desk.broker.schedules.has_room = lambda _: True
    desk.wait(10)
    assert desk.queue.count == 1
    assert desk.broker.out.take_writes()


def test_times_of_cron() -> None:
    """The next time is found on the clock of the wall."""
    desk = Desk()
    desk.broker = Broker("s", count(1), wall=lambda now: now + 3_600)
    desk.broker.queues.declare(desk.queue.spec, 0.0)
    assert plan(desk, every=None, cron="30 * * * *").due == 1_800.0
    desk.now = 1_800.0
    desk.broker.advance(desk.now)
    assert desk.broker.schedules.found["s"].due == 5_400.0


@pytest.mark.parametrize(
    ("by", "times"), [(2.0, [3_602.0, 7_202.0]), (7_200.0, [3_600.0, 7_200.0]), (-2.0, [3_600.0, 7_198.0])]
)
def test_a_time_of_cron_is_used_once(by: float, times: list[float]) -> None:
    """A time of cron comes once though the wall clock was set back a little; a clock that was set back far counts anew."""
    desk = Desk()
    back = [0.0]
    desk.broker = Broker("s", count(1), wall=lambda now: now - back[0])
    queue = desk.broker.queues.declare(desk.queue.spec, 0.0)
    plan(desk, every=None, cron="0 * * * *")
    back[0] = by
    fired: list[float] = []
    while len(fired) < 2:
        due = desk.broker.deadline
        assert due is not None
        desk.now = due
        desk.broker.advance(due)
        fired += [due] * (queue.count - len(fired))
    assert fired == times


def test_times_of_a_zone() -> None:
    """The fields are in the zone of the schedule."""
    desk = Desk()
    desk.broker = Broker("s", count(1), wall=lambda now: now)
    desk.broker.queues.declare(desk.queue.spec, 0.0)
    # In 1970 Berlin was an hour ahead all year.
    assert plan(desk, every=None, cron="0 3 * * *", zone="Europe/Berlin").due == 7_200.0


@pytest.mark.parametrize(("missed", "tasks"), [("once", 1), ("skip", 0)])
def test_times_at_which_no_broker_ran(missed: str, tasks: int) -> None:
    """They become one task or none, as the schedule says; it goes on in its rhythm, and in its zone."""
    desk = Desk(journal=True)
    plan(desk, missed=missed)
    plan(desk, "late", every=100.0, missed=missed)
    plan(desk, "cron", every=None, cron="0 3 * * *", zone="Europe/Berlin", missed="skip")
    writes = desk.broker.out.take_writes()
    again = Broker.restored(writes, 37.0, "s", count(1), epoch=2)
    again.advance(37.0)
    assert again.queues.get("q").count == tasks
    assert (again.schedules.found["s"].due, again.schedules.found["late"].due) == (40.0, 100.0)
    assert (again.schedules.found["cron"].zone, again.schedules.found["cron"].missed) == ("Europe/Berlin", "skip")
    again.advance(40.0)
    assert again.queues.get("q").count == tasks + 1


def test_one_of_an_older_hub() -> None:
    """A schedule that was stored without zone and fate has the defaults."""
    desk = Desk(journal=True)
    old = Scheduled("old", 50.0, ("q", b"x", 1, PLAIN, 10.0, None))
    again = Broker.restored([*desk.broker.out.take_writes(), old], 0.0, "s", count(1), epoch=2)
    assert (again.schedules.found["old"].zone, again.schedules.found["old"].missed) == ("UTC", "once")


@pytest.mark.parametrize(("missed", "tasks"), [("once", 1), ("skip", 0)])
def test_a_zone_that_is_unknown_after_a_restart(missed: str, tasks: int, caplog: pytest.LogCaptureFixture) -> None:
    """A schedule whose zone the system of a restarted broker does not have rests; the broker and other schedules go on."""
    desk = Desk(journal=True)
    values = ("q", b"x", 1, PLAIN, None, "0 3 * * *", "Mars/Olympus", missed)
    plan(desk, "other", every=100.0)
    writes = [*desk.broker.out.take_writes(), Scheduled("gone", 50.0, values)]
    again = Broker.restored(writes, 60.0, "s", count(1), epoch=2)
    again.advance(60.0)
    assert again.queues.get("q").count == tasks
    assert "'gone' rests" in caplog.text
    again.advance(100.0)
    assert again.queues.get("q").count == tasks + 1
    assert again.schedules.remove("gone")


def test_replaced_and_removed() -> None:
    """A schedule takes the place of one of its name; removed it fires no more."""
    desk = Desk()
    plan(desk)
    plan(desk, every=100.0)
    desk.wait(50)
    assert desk.queue.count == 0
    assert desk.broker.schedules.remove("s")
    assert not desk.broker.schedules.remove("s")
    desk.wait(100)
    assert desk.queue.count == 0


def test_no_room() -> None:
    """A queue that is full is passed over, and the schedule goes on."""
    desk = Desk(max_length=1)
    plan(desk)
    desk.wait(35)
    assert desk.queue.count == 1
    desk.broker.admin.purge(desk.queue, "ready", desk.now)
    desk.wait(10)
    assert desk.queue.count == 1


def test_a_deleted_queue_takes_its_schedules() -> None:
    """Deleting a queue removes its schedules, for good and from the count, and those of no other queue."""
    desk = Desk(Limits(schedules=2), journal=True)
    desk.declare("other")
    plan(desk)
    plan(desk, "kept", queue="other")
    desk.broker.queues.delete(desk.queue, desk.now)
    assert set(desk.broker.schedules.found) == {"kept"}
    plan(desk, "one more", queue="other")
    desk.queue = desk.declare("q")
    desk.wait(35)
    assert desk.queue.count == 0
    again = Broker.restored(desk.broker.out.take_writes(), desk.now, "s", count(1), epoch=2)
    assert set(again.schedules.found) == {"kept", "one more"}


def test_a_schedule_is_stored_with_its_queue() -> None:
    """A schedule of a queue that is not durable is not stored; a stored one without a queue is removed from the store."""
    desk = Desk(journal=True)
    desk.declare("brief", durable=False)
    plan(desk)
    plan(desk, queue="brief")
    desk.wait(35)
    writes = desk.broker.out.take_writes()
    assert isinstance(writes[-1], Scheduled)
    assert writes[-1].values is None
    stored = Scheduled("old", 50.0, ("gone", b"x", 1, PLAIN, 10.0, None))
    again = Broker.restored([*writes, stored], desk.now, "s", count(1), epoch=2)
    assert not again.schedules.found
    assert Scheduled("old", 0.0, None) in again.out.take_writes()


def test_what_cannot_be() -> None:
    """Times, names, keys and queues that cannot be are refused, and what was there stays."""
    desk = Desk(Limits(schedules=1))
    plan(desk)
    for wrong in (
        {"every": None},
        {"cron": "* * * * *"},
        {"every": 0.0},
        {"every": None, "cron": "x"},
        {"name": "*"},
        {"missed": "x"},
    ):
        with pytest.raises(ConfigError):
            plan(desk, **wrong)
    with pytest.raises(ConfigError, match="dedup"):
        plan(desk, options=(0, 0.0, None, None, "key", True, False, None))
    with pytest.raises(NoRoute):
        plan(desk, queue="nothing")
    with pytest.raises(QueueFull, match="1 schedules"):
        plan(desk, "another")
    desk.wait(10)
    assert desk.queue.count == 1


def test_a_firing_is_one_step_with_the_next() -> None:
    """The writes of a turn have the task and the next time; a broker that is restored from them goes on, once."""
    desk = Desk(journal=True)
    plan(desk)
    writes = desk.broker.out.take_writes()
    desk.now = 10.0
    desk.broker.advance(desk.now)
    fired = desk.broker.out.take_writes()
    assert [type(each) for each in fired] == [Put, Scheduled]
    assert isinstance(fired[1], Scheduled)
    assert fired[1].due == 20.0
    again = Broker.restored([*writes, *fired], 57.0, "s", count(1), epoch=2)
    again.advance(57.0)
    assert again.queues.get("q").count == 2
    assert again.schedules.found["s"].due == 60.0
    again.schedules.remove("s")
    gone = [*writes, *fired, *again.out.take_writes()]
    assert not Broker.restored(gone, 58.0, "s", count(1), epoch=3).schedules.found
