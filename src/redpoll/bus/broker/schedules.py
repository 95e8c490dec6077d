"""Schedules: tasks that are put into queues at set times."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from redpoll.bus.broker.cron import UTC, next_time
from redpoll.bus.broker.limits import CHARGE
from redpoll.bus.broker.outputs import Scheduled
from redpoll.bus.broker.queue import Options, Peer
from redpoll.bus.broker.tasks import Tasks
from redpoll.bus.broker.timers import Entry
from redpoll.bus.records import ScheduleInfo, check_subject
from redpoll.checks import one_of, require, seconds
from redpoll.errors import ConfigError, NoRoute, QueueFull

__all__ = ["MIN_EVERY", "Schedule", "Schedules", "check_times"]

_log = logging.getLogger("redpoll.bus")

MIN_EVERY: Final = 0.1
"""Minimum seconds between two tasks of a schedule."""

_missed: Final = one_of("once", "skip")

_SET_BACK: Final = 600.0
"""Seconds by which the wall clock may be set back while a time of cron is waited for: the time is not used twice then."""


@dataclass(slots=True, eq=False)
class Schedule:
    """A task, and the times at which it is put into its queue."""

    name: str
    queue: str
    payload: Any
    """The owner's."""
    size: int
    """Bytes of the body."""
    options: Options
    every: float | None
    """Seconds between two of them; None where `cron` says when."""
    cron: str | None
    zone: str = UTC
    """The time zone of `cron`."""
    missed: str = "once"
    """The fate of times at which no broker ran."""
    due: float = 0.0
    """Time of the next one."""
    at: float = 0.0
    """The same in seconds since 1970, where `cron` says when; 0 if it was planned before a restart."""
    timer: Entry | None = None


def check_times(every: float | None, cron: str | None, missed: str) -> None:
    """Check the times of a schedule, but for what `cron` says.

    Raises:
        ConfigError: One cannot be.
    """
    if (every is None) is (cron is None):
        raise ConfigError("every", every, "must be given, or cron, and not both")
    if every is not None:
        require("every", every, seconds)
        if every < MIN_EVERY:
            raise ConfigError("every", every, f"must be at least {MIN_EVERY:g} seconds")
    require("missed", missed, _missed)


class Schedules:
    """The schedules by name. A firing, and the time of the next one, are writes of one turn.

    Firings missed while the broker was down become one, or none, as the schedule says. A full queue is skipped, and a durable
    one while the owner's disk is full. A schedule lives as long as its queue: it is stored if that is durable, and removed
    when it is deleted.

    Args:
        tasks: The tasks.
        wall: Makes seconds since 1970 of a time of the broker.

    Attributes:
        has_room: Returns True if the owner's disk has room for a task of so many bytes, or for a time (0), which is then
            taken; set by an owner that has a disk.
    """

    def __init__(self, tasks: Tasks, wall: Callable[[float], float]) -> None:
        self._tasks = tasks
        self._wall = wall
        self._nobody = Peer("", None, present=False, open=False, gone=True)
        self.found: dict[str, Schedule] = {}
        self.has_room: Callable[[int], bool] = lambda _: True

    def set(self, schedule: Schedule, now: float) -> None:
        """Add a schedule, in the place of one of that name.

        Raises:
            ConfigError: Its name or its times cannot be.
            NoRoute: There is no such queue.
            QueueFull: There are too many.
        """
        check_subject("name", schedule.name)
        check_times(schedule.every, schedule.cron, schedule.missed)
        if schedule.options[4] is not None:
            raise ConfigError("dedup", schedule.options[4], "must be None: each task of a schedule is another one")
        queue = self._tasks.queues.get(schedule.queue)
        if queue is None:
            check_subject("queue", schedule.queue)
            raise NoRoute(schedule.queue, "declare it first")
        limit = self._tasks.limits.schedules
        if len(self.found) >= limit and schedule.name not in self.found:
            raise QueueFull(None, limit, "schedules", queue=schedule.queue)
        self._plan(schedule, now)
        self.remove(schedule.name, written=not queue.spec.durable)
        self.add(schedule)
        self._write(schedule)

    def add(self, schedule: Schedule) -> None:
        """Add one that is planned, and stored."""
        self.found[schedule.name] = schedule
        schedule.timer = self._tasks.timers.add(schedule.due, schedule)

    def restore(self, schedule: Schedule, now: float) -> None:
        """Add one that was stored by an earlier broker; times since then are missed."""
        if schedule.missed == "skip" and schedule.due <= now:
            self._plan_again(schedule, now)
        else:
            self.add(schedule)

    def describe(self, now: float) -> list[ScheduleInfo]:
        """Describe all of them."""
        same = ("name", "queue", "every", "cron", "zone", "missed")
        found = self.found.values()
        return [ScheduleInfo(left=each.due - now, **{name: getattr(each, name) for name in same}) for each in found]

    def remove(self, name: str, *, written: bool = True) -> bool:
        """Remove a schedule; return False if there is none of that name."""
        schedule = self.found.pop(name, None)
        if schedule is None:
            return False
        if schedule.timer is not None:
            self._tasks.timers.cancel(schedule.timer)
        if written:
            self.forget(name)
        return True

    def remove_all(self, queue: str) -> None:
        """Remove the schedules of a queue, which is deleted."""
        for name in [each.name for each in self.found.values() if each.queue == queue]:
            self.remove(name)

    def forget(self, name: str) -> None:
        """Write that there is no schedule of that name."""
        self._tasks.out.write(True, Scheduled(name, 0.0, None))

    def fire(self, schedule: Schedule, now: float) -> None:
        """Put the task of a schedule into its queue, and plan the next one."""
        early = 0.0 if schedule.cron is None else schedule.at - self._wall(now)
        if 0.0 < early <= _SET_BACK:
            schedule.due = now + early
            self.add(schedule)
            return
        queue = self._tasks.queues[schedule.queue]
        has_room = queue.has_room(schedule.size + CHARGE)
        can_write = not queue.spec.durable or self.has_room(schedule.size if has_room else 0)
        if has_room and can_write:
            self._tasks.put(queue, schedule.payload, schedule.size, now, self._nobody, None, schedule.options)
        self._plan_again(schedule, now)
        if can_write:  # else one that is restarted meanwhile takes this time as missed
            self._write(schedule)

    def _plan_again(self, schedule: Schedule, now: float) -> None:
        """Plan and add one that was planned before; it rests where that fails, as its zone may be unknown here."""
        try:
            self._plan(schedule, now)
        except ConfigError as error:
            _log.error("schedule %r rests until it is set again, or the broker restarts: %s", schedule.name, error)
            schedule.timer = None
            self.found[schedule.name] = schedule
        else:
            self.add(schedule)

    def _plan(self, schedule: Schedule, now: float) -> None:
        if schedule.cron is not None:
            wall = self._wall(now)
            schedule.at = next_time(schedule.cron, wall, schedule.zone)
            schedule.due = now + schedule.at - wall
        else:
            every = max(schedule.every or 1.0, MIN_EVERY)
            # The rhythm stays where one was late, or missed.
            late = (now - schedule.due) % every if schedule.due else 0.0
            schedule.due = now + every - late

    def _write(self, schedule: Schedule) -> None:
        writes = self._tasks.out.writes
        if writes is not None and self._tasks.queues[schedule.queue].spec.durable:
            times = (schedule.every, schedule.cron, schedule.zone, schedule.missed)
            values = (schedule.queue, schedule.payload, schedule.size, schedule.options, *times)
            writes.append(Scheduled(schedule.name, schedule.due, values))
