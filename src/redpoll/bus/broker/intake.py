"""Operations of publishers: put tasks into queues, send events to subjects, watch, wait for room."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from redpoll.bus.broker.kept import Kept
from redpoll.bus.broker.limits import CHARGE
from redpoll.bus.broker.outputs import ADMITTED, EVENT, OUTCOME, RECALL, Brief
from redpoll.bus.broker.queue import PLAIN, Options, Parked, Peer, Queue, Subscription, Task
from redpoll.bus.broker.tasks import Tasks
from redpoll.bus.broker.topics import Topics
from redpoll.bus.records import Step, check_last, check_publishing, check_subject
from redpoll.errors import Expired, NoRoute, QueueFull, RedpollError, ResultExpired, UnknownTask, UsageError

__all__ = ["Intake", "Planned"]

Planned: TypeAlias = tuple[Step, int, Any]
"""A task that is published together with others, the size of its body, and the owner's watcher or None."""

_EVENT: Final[Options] = (0, 0.0, None, None, None, False, False, None)


class Intake:
    """Publishing, to queues and to subjects.

    Args:
        tasks: The tasks.
        bound: The queues by their topics.
        live: The live subscriptions by their patterns.
    """

    def __init__(self, tasks: Tasks, bound: Topics[Queue], live: Topics[Subscription]) -> None:
        self._limits, self._out, self._timers = tasks.limits, tasks.out, tasks.timers
        self._tasks = tasks
        self._bound = bound
        self._live = live
        self.kept = Kept(tasks.limits, tasks.out)
        # The options that were checked last: most publishes have the same.
        self._checked = PLAIN

    # -- to a queue

    def submit(
        self,
        peer: Peer,
        name: str,
        payload: Any,
        size: int,
        now: float,
        watch: Any = None,
        options: Options = PLAIN,
        owner: Any = None,
    ) -> Task | int | Parked:
        """Put a task into a queue. See `redpoll.bus.engine.Engine.publish`.

        Args:
            peer: The publisher.
            name: Name of the queue.
            payload: The owner's message.
            size: Bytes of the body.
            now: The time.
            watch: The owner's watcher, handed back with each effect for it.
            options: The options of the publish.
            owner: The owner's own, kept with a publish that waits.

        Returns:
            The task; the number of an earlier one with that key, which is not watched; or the publish that waits for room,
            whose end is an effect ADMITTED.

        Raises:
            NoRoute: There is no such queue, or no consumer and the publish is mandatory.
            QueueFull: There is no room, and the queue refuses.
            Expired: There is no room, or its ttl or deadline is over, and no time is left.
            UsageError: An option is not valid.
        """
        priority, delay, ttl, deadline, dedup, _, mandatory, timeout = options
        if options != self._checked:
            check_publishing(priority, delay, ttl, deadline, timeout, dedup)
            self._checked = options
        queue = self._tasks.queues.get(name)
        if queue is None:
            check_subject("queue", name)
            raise NoRoute(name, "declare it first")
        if mandatory and not queue.consumers:
            raise NoRoute(name)
        if (ttl is not None and ttl <= 0) or (deadline is not None and deadline <= 0):
            raise _no_time(deadline if ttl is None else ttl, name)
        if dedup is not None:
            known = queue.dedup.find(dedup, now, self._tasks.found)
            if known:
                return known
        if (
            queue.parked
            or ((queue.bytes + size + CHARGE > queue.max_bytes or queue.count >= queue.max_length) and queue.count)
        ) and not self._make_room(queue, size + CHARGE, 1, now):
            arguments = (name, payload, size, watch, options)
            # A task that would have expired in the queue does not wait for room any longer.
            limit = min((each for each in (timeout, ttl, deadline) if each is not None), default=None)
            return self._park(queue, Parked(peer, owner, arguments, self._submit_again, limit), now)
        return self._tasks.put(queue, payload, size, now, peer, watch, options)

    def _submit_again(self, parked: Parked, now: float) -> bool:
        name, payload, size, watch, options = parked.arguments
        _, _, _, _, dedup, _, mandatory, _ = options
        queue = self._tasks.queues.get(name)
        if queue is not None and queue is parked.queue and not queue.has_room(size + CHARGE):
            return False
        self._end(parked)
        number = known = 0
        error: RedpollError | None = None
        if queue is None or (mandatory and not queue.consumers):
            error = NoRoute(name)
        else:
            number = known = queue.dedup.find(dedup, now, self._tasks.found) if dedup is not None else 0
            options = _later(options, now - parked.since)
            if not known and 0.0 in options[2:4]:
                error = _no_time(parked.timeout, name)
            elif not known:
                number = self._tasks.put(queue, payload, size, now, parked.peer, watch, options).id
        self._tasks.tell(parked.peer, (ADMITTED, parked.peer, parked, number, error, bool(known)))
        return True

    def submit_steps(
        self, peer: Peer, steps: Sequence[Planned], now: float, timeout: float | None = None, owner: Any = None
    ) -> list[int] | int | Parked:
        """Put tasks into their queues, of which some come after others: all of them, or none.

        Args:
            peer: The publisher.
            steps: The tasks, each with the size of its body, and its watcher; their envelope is the payload.
            now: The time.
            timeout: Seconds to wait for room, or None.
            owner: As for `submit`.

        Returns:
            Their numbers; that of an earlier task of the last one's key alone, where that is known; or the publish that
            waits for room, whose end is an effect ADMITTED with these.

        Raises:
            UsageError: An option is not valid, a durable task comes after one that is not, or those of a queue are more than
                it ever holds.
            NoRoute: A queue does not exist.
            QueueFull: A queue has no room, and refuses.
            Expired: A queue has no room, and no time is left.
        """
        check_publishing(0, 0.0, timeout=timeout)
        queues = self._queues_of(steps)
        known = self._known(steps, now)
        if known:
            return known
        full = self._first_full(tuple(queues), queues, now, new=True)
        if full is not None:
            return self._park(full, Parked(peer, owner, (steps,), self._submit_steps_again, timeout), now)
        return self._put_all(peer, steps, now)

    def _queues_of(self, steps: Sequence[Planned]) -> dict[Queue, tuple[int, int]]:
        """Return the queues of tasks, each with the bytes and the number of those that are for it."""
        found: dict[Queue, tuple[int, int]] = {}
        for step, size, _ in steps:
            name = step.publication.queue
            queue = self._tasks.queues.get(name)
            if queue is None:
                check_subject("queue", name)
                raise NoRoute(name, "declare it first")
            if queue.spec.durable:
                for each in step.after:
                    before = steps[each][0].publication.queue
                    if not self._tasks.queues[before].spec.durable:
                        raise UsageError(
                            f"a task of {name!r} would wait for one of {before!r} after a restart, which is not durable",
                            "let both queues be durable",
                        )
            bytes_, number = found.get(queue, (0, 0))
            found[queue] = bytes_ + size + CHARGE, number + 1
        for queue, (bytes_, number) in found.items():
            # A single one is always taken by a queue that has none.
            if number > queue.max_length or (bytes_ > queue.max_bytes and number > 1):
                limit, unit = queue.full(number)
                raise UsageError(
                    f"{number:,} tasks of {bytes_:,} bytes together never fit into queue {queue.spec.name!r}, which holds"
                    f" {limit:,} {unit}",
                    "submit fewer together, or declare the queue with a higher limit",
                )
        return found

    def _known(self, steps: Sequence[Planned], now: float) -> int:
        last = steps[-1][0].publication
        key = last.dedup
        return 0 if key is None else self._tasks.queues[last.queue].dedup.find(key, now, self._tasks.found)

    def _put_all(self, peer: Peer, steps: Sequence[Planned], now: float) -> list[int]:
        followed = {each for step, *_ in steps for each in step.after}
        numbers: list[int] = []
        for place, (step, size, watch) in enumerate(steps):
            each = step.publication
            options = each.options
            if place in followed:
                # Its outcome is for those that come after it.
                options = (*options[:5], True, *options[6:])
            after = tuple(numbers[before] for before in step.after)
            queue = self._tasks.queues[each.queue]
            task = self._tasks.put(
                queue, each.envelope, size, now, peer, watch, options, after=after, collect=step.collect
            )
            numbers.append(task.id)
        return numbers

    def _submit_steps_again(self, parked: Parked, now: float) -> bool:
        (steps,) = parked.arguments
        numbers: list[int] = []
        error = None
        known = 0
        try:
            queues = self._queues_of(steps)
            known = self._known(steps, now)
            full = None if known else self._first_full(tuple(queues), queues, now, new=False)
            if full is not None:
                return self._stay(parked, full)
            numbers = [known] if known else self._put_all(parked.peer, steps, now)
        except RedpollError as failed:
            error = failed
        self._end(parked)
        self._tasks.tell(parked.peer, (ADMITTED, parked.peer, parked, numbers, error, bool(known)))
        return True

    # -- to a subject

    def publish(
        self,
        peer: Peer,
        subject: str,
        payload: Any,
        size: int,
        now: float,
        mandatory: bool = False,
        last: int = 0,
        timeout: float | None = None,
        owner: Any = None,
    ) -> Parked | None:
        """Send an event to all matching subscriptions and queues, or to none. The arguments are those of `submit`.

        Raises:
            NoRoute: Nothing matches, and the publish is mandatory.
            QueueFull: A matching queue has no room, and refuses.
            Expired: A matching queue has no room, and no time is left.
            ConfigError: The subject or an option is not valid.
        """
        check_publishing(0, 0.0, None, None, timeout)
        if type(last) is not int or last:
            check_last(last)
        live = self._live.match(subject)
        queues = self._bound.match(subject) if self._bound.count else ()
        if mandatory and not live and not queues:
            raise NoRoute(subject)
        if [each for each in queues if each.parked or not each.has_room(size + CHARGE)]:
            full = self._first_full(queues, dict.fromkeys(queues, (size + CHARGE, 1)), now, new=True)
            if full is not None:
                arguments = (subject, payload, size, last)
                return self._park(full, Parked(peer, owner, arguments, self._publish_again, timeout), now)
        self._send(peer, subject, payload, size, now, last, live, queues)
        return None

    def stores(self, subject: str, last: int) -> bool:
        """Return True if an event is to be stored: it is kept, or goes to a durable queue."""
        bound = self._bound.match(subject) if self._bound.count else ()
        return last > 0 or any(queue.spec.durable for queue in bound)

    def _send(
        self,
        peer: Peer,
        subject: str,
        payload: Any,
        size: int,
        now: float,
        last: int,
        live: tuple[Subscription, ...],
        queues: tuple[Queue, ...],
    ) -> None:
        if last > 0:
            self.kept.add(subject, last, payload, size)
        if live:
            self._out.effects.append((EVENT, live, subject, payload, False))
        for queue in queues:
            self._tasks.put(queue, payload, size, now, peer, None, _EVENT)

    def _publish_again(self, parked: Parked, now: float) -> bool:
        subject, payload, size, last = parked.arguments
        queues = self._bound.match(subject)
        error = None
        try:
            full = self._first_full(queues, dict.fromkeys(queues, (size + CHARGE, 1)), now, new=False)
            if full is not None:
                return self._stay(parked, full)
            self._send(parked.peer, subject, payload, size, now, last, self._live.match(subject), queues)
        except RedpollError as failed:
            error = failed
        self._end(parked)
        self._tasks.tell(parked.peer, (ADMITTED, parked.peer, parked, 0, error, False))
        return True

    @staticmethod
    def _stay(parked: Parked, full: Queue) -> bool:
        """Let a publish wait in a queue that has no room; return False if it waited there before."""
        if full is parked.queue:
            return False
        parked.queue = full
        full.parked.append(parked)
        return True

    def _first_full(
        self, queues: tuple[Queue, ...], sizes: Mapping[Queue, tuple[int, int]], now: float, *, new: bool
    ) -> Queue | None:
        """Return the first queue without room that lets publishes wait; queues that drop their oldest task do so last.

        Args:
            queues: The queues.
            sizes: The bytes and the number of tasks for each.
            now: The time.
            new: True if it is to wait behind others.
        """
        if len(queues) > 1:
            queues = tuple(sorted(queues, key=lambda each: each.spec.at_limit == "drop-old"))
        for queue in queues:
            size = sizes[queue]
            if ((new and queue.parked) or not queue.has_room(*size)) and not self._make_room(queue, *size, now):
                return queue
        return None

    def subscribe(
        self, peer: Peer, patterns: tuple[str, ...], owner: Any = None, *, last: bool = False
    ) -> Subscription:
        """Subscribe a peer to some patterns; the events that are kept come first.

        Raises:
            ConfigError: A pattern is not valid.
            QueueFull: There are too many subscriptions.
        """
        if self._live.count + len(patterns) > self._limits.subscriptions:
            raise QueueFull(None, self._limits.subscriptions, "subscriptions", queue=patterns[0])
        subscription = Subscription(peer, patterns, owner)
        added: list[str] = []
        try:
            for pattern in patterns:
                self._live.add(pattern, subscription)
                added.append(pattern)
        except RedpollError:
            for pattern in added:
                self._live.remove(pattern, subscription)
            raise
        peer.subscriptions[subscription] = None
        if last:
            only = (subscription,)
            for subject, payload in self.kept.matching(patterns):
                self._out.effects.append((EVENT, only, subject, payload, True))
        return subscription

    # -- no room

    def _make_room(self, queue: Queue, size: int, number: int, now: float) -> bool:
        if queue.spec.at_limit == "drop-old":
            if self._tasks.make_room(queue, size, now, number):
                return True
        elif queue.spec.at_limit == "wait":
            return False
        limit, unit = queue.full()
        raise QueueFull(None, limit, unit, queue=queue.name)

    def _park(self, queue: Queue, parked: Parked, now: float) -> Parked:
        if len(queue.parked) >= self._limits.parked:
            # Some may have ended.
            waiting = [each for each in queue.parked if not each.done]
            queue.parked.clear()
            queue.parked.extend(waiting)
        if parked.timeout is not None and parked.timeout <= 0:
            raise _no_time(parked.timeout, queue.name)
        if len(queue.parked) >= self._limits.parked:
            raise QueueFull(None, self._limits.parked, "waiting publishes", queue=queue.name)
        parked.queue = queue
        parked.since = now
        queue.parked.append(parked)
        if parked.timeout is not None:
            parked.timer = self._timers.add(now + parked.timeout, parked)
        return parked

    def unpark(self, waiting: Iterable[Parked], now: float) -> None:
        """Withdraw publishes that wait for room, and admit the ones behind them."""
        queues = []
        for parked in waiting:
            if not parked.done:
                self._end(parked)
                queues.append(parked.queue)
        for queue in queues:
            if queue is not None:
                self._tasks.admit(queue, now)

    def expire(self, parked: Parked, now: float) -> None:
        """End a publish that waited for too long, and admit the ones behind it."""
        self._end(parked)
        error = _no_time(parked.timeout, "" if parked.queue is None else parked.queue.name)
        self._tasks.tell(parked.peer, (ADMITTED, parked.peer, parked, 0, error, False))
        if parked.queue is not None:
            self._tasks.admit(parked.queue, now)

    def _end(self, parked: Parked) -> None:
        parked.done = True
        parked.arguments = ()
        if parked.timer is not None:
            self._timers.cancel(parked.timer)

    # -- watching

    def watch(self, peer: Peer, number: int, watch: Any, now: float) -> None:
        """Add a peer's watcher to a task; an outcome that is known is told at once.

        Raises:
            UnknownTask: There was none with that number.
            ResultExpired: It ended, and its outcome is not kept.
            QueueFull: It has too many watchers.
        """
        if watch is None:
            return
        task = self._tasks.found.get(number)
        if task is not None:
            if task.watch is None and task.peer is peer:
                task.watch = watch
                return
            extra = task.more
            if len(extra.watchers) >= self._limits.watchers:
                extra.watchers = tuple(each for each in extra.watchers if not each[0].gone)
            if len(extra.watchers) >= self._limits.watchers:
                raise QueueFull(None, self._limits.watchers, "watchers", queue=task.queue.name)
            extra.watchers = (*extra.watchers, (peer, watch))
            return
        found = self._tasks.results.find(number, now)
        if found is None:
            raise (ResultExpired if self._tasks.knows(number) else UnknownTask)(self._tasks.text(number))
        if isinstance(found, Brief):
            self._tasks.tell(peer, (RECALL, peer, watch, number))
        else:
            self._tasks.tell(peer, (OUTCOME, peer, watch, number, found.kind, found.payload, found.detail))

    def unwatch_all(self, peer: Peer) -> list[Any]:
        """Remove the watchers of a peer from all tasks; return them."""
        found = []
        for task in self._tasks.found.values():
            if task.peer is peer and task.watch is not None:
                found.append(task.watch)
                task.watch = None
            if task.extra is not None and task.extra.watchers:
                found += [watch for other, watch in task.extra.watchers if other is peer]
                task.extra.watchers = tuple(each for each in task.extra.watchers if each[0] is not peer)
        return found


def _no_time(seconds: float | None, queue: str) -> Expired:
    """Return the error of a publish whose time is over."""
    return Expired(None, seconds, f"waiting for room in queue {queue!r}")


def _later(options: Options, seconds: float) -> Options:
    """Return the options of a publish that has waited: its times count from the call."""
    priority, delay, ttl, deadline, dedup, keep, mandatory, timeout = options
    ttl, deadline = (None if each is None else max(0.0, each - seconds) for each in (ttl, deadline))
    return priority, max(0.0, delay - seconds), ttl, deadline, dedup, keep, mandatory, timeout
