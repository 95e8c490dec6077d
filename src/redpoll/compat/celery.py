"""Celery on a hub: importing this module makes ``Celery(broker="redpoll://…", backend="redpoll://…")`` work.

The broker is `redpoll.compat.kombu`. The results are kept by the hub, on its disk, each as the last event of a subject: for
``result_expires`` (a day), within 250,000 results and 64 MiB, the oldest leaving first. Who waits for one is told when it is
there.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from celery import states
from celery.backends.base import KeyValueStoreBackend
from celery.exceptions import TimeoutError as CeleryTimeoutError
from kombu.utils.encoding import bytes_to_str
from kombu.utils.url import parse_url

from redpoll.bus.engine import EventSink, Subscription
from redpoll.bus.records import Event
from redpoll.compat.kombu import LoopSide, hub_url, shared_bus
from redpoll.compat.results import fetch, is_ready, leave, store, value_of, watch
from redpoll.errors import RedpollError

__all__ = ["RedpollBackend"]

_PREFIX: Final = "celery.results."


#: Tasks sent whose results are not asked for yet, that are noted, and results that came ahead, at most; with so many the
#: hub is asked for all of them at once; results of more bytes are left to the hub.
_AHEAD: Final = 10_000
_MANY: Final = 16
_SMALL: Final = 4_096
#: Watches of such results.
_WATCHES: Final = 20


def _subject(key: str) -> str:
    return f"{_PREFIX}{key}"


class _Ahead:
    """The results of tasks that were sent here, as they come, before they are asked for.

    Threads take from `sent` and `found` by single calls, the loop changes the rest. What is not found is asked for as ever.

    Attributes:
        home: The connection to the hub over which they come, once results were asked for.
        sent: The subjects of tasks that were sent.
        found: The results that came, by subject.
    """

    def __init__(self) -> None:
        self.home: object = None
        self.sent: dict[str, None] = {}
        self.found: dict[str, Event] = {}
        #: The subjects whose results are to come, and what brings them.
        self._left: set[str] = set()
        self._watched: list[Subscription] = []

    async def watch_sent(self, side: LoopSide) -> None:
        """Ask for the results of the tasks that were sent; those that are there have come when this returns."""
        sent = list(self.sent)
        for subject in sent:
            self.sent.pop(subject, None)
        if len(self._watched) >= _WATCHES or len(self._left) + len(sent) > _AHEAD:
            self._left.clear()
        await self.leave(side, [])
        self._left.update(sent)
        try:
            opened = await watch(side.engine, sent, self._take)
        except BaseException:
            self._left.difference_update(sent)
            raise
        # Not before: another thread's wait may have ended what was watched.
        self._watched += opened

    def _take(self, event: Event) -> None:
        if event.subject in self._left and is_ready(event):
            self._left.discard(event.subject)
            if len(event.envelope.body) <= _SMALL:
                if len(self.found) >= _AHEAD:  # of tasks that nobody waits for, most likely
                    self.found.clear()
                self.found[event.subject] = event

    async def watch(self, side: LoopSide, subjects: list[str], sink: EventSink) -> list[Subscription]:
        """Watch results that did not come ahead."""
        self._left.difference_update(subjects)
        for subject in subjects:
            self.found.pop(subject, None)
        return await watch(side.engine, subjects, sink)

    @property
    def is_over(self) -> bool:
        """True if results were to come ahead, and all have come."""
        return bool(self._watched) and not self._left

    async def leave(self, _: LoopSide, watched: list[Subscription]) -> None:
        """End a watch, and those of results ahead where all have come."""
        if not self._left:
            watched, self._watched = [*watched, *self._watched], []
        await leave(watched)


class Arrivals:
    """Events for a thread: of each subject the last one, put by the loop."""

    def __init__(self) -> None:
        self._last: dict[str, Event] = {}
        self._queued: set[str] = set()
        self._coming: queue.SimpleQueue[str] = queue.SimpleQueue()

    def put(self, event: Event) -> None:
        """Put an event in the place of the one of its subject that was not taken."""
        self._last[event.subject] = event
        if event.subject not in self._queued:
            self._queued.add(event.subject)
            self._coming.put(event.subject)

    def take(self, timeout: float) -> Event | None:
        """Wait for an event for some seconds, and take it; None if it was taken with the one before.

        Raises:
            Empty: There is none.
        """
        subject = self._coming.get(timeout=timeout)
        # In this order: what comes from now on is read now, or queued again.
        self._queued.discard(subject)
        return self._last.pop(subject, None)


class RedpollBackend(KeyValueStoreBackend):  # type: ignore[misc]  # it has no types
    """The results of Celery's tasks at a hub.

    Options of `redpoll.connect` are ``result_backend_transport_options={"redpoll": {…}}``.

    Results of tasks that this process has sent are sent here as they come once some are waited for, 10,000 of up to 4 KiB at
    most: those that nobody reads are dropped.

    Raises:
        UsageError: It is the URL of another engine than a hub.
    """

    supports_native_join = True
    supports_autoexpire = True
    persistent = True
    key_t = staticmethod(bytes_to_str)

    def __init__(self, url: str | None = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, url=url, **kwargs)
        options = self.app.conf.result_backend_transport_options.get("redpoll", {})
        parts = parse_url(url or "redpoll://")
        names = ("hostname", "port", "userid", "password", "transport")
        self._bus, self._let_go = shared_bus(hub_url(*(parts[name] for name in names)), options)
        self._ahead = _Ahead()

    def close(self) -> None:
        """Let go of the link to the hub, in a program that continues without Celery; the broker may use it still."""
        self._let_go()

    def exception_safe_to_retry(self, exc: BaseException) -> bool:
        """Return True if storing or reading may be tried again (``result_backend_always_retry``)."""
        return isinstance(exc, RedpollError | OSError)

    def get(self, key: str) -> bytes | None:
        """Return a value; None if there is none."""
        return self.mget([key])[0]

    def mget(self, keys: list[str]) -> list[bytes | None]:
        """Return several values."""
        return self._bus.run(lambda side: fetch(side.engine, list(map(_subject, keys))))

    def set(self, key: str, value: str | bytes) -> None:
        """Store a value; it is on the hub's disk when this returns."""
        self._set_with_state(key, value, None)

    def _set_with_state(self, key: str, value: str | bytes, state: str | None) -> None:
        body, ready = value.encode() if isinstance(value, str) else value, state in states.READY_STATES
        self._bus.ask(lambda side: store(side.engine, _subject(key), body, self.expires, ready=ready))

    def delete(self, key: str) -> None:
        """Delete a value."""
        self._ahead.found.pop(_subject(key), None)
        self._bus.ask(lambda side: store(side.engine, _subject(key), b"", None))

    def _store_result(self, task_id: str, result: Any, state: str, *args: Any, **kwargs: Any) -> Any:
        if state != states.SUCCESS:  # it may not replace one, which is looked for
            return super()._store_result(task_id, result, state, *args, **kwargs)
        meta = self._get_result_meta(result=result, state=state, traceback=None, request=kwargs.get("request"))
        encoded = self.encode({**meta, "task_id": bytes_to_str(task_id)})
        self._set_with_state(self.get_key_for_task(task_id), encoded, state)
        return result

    def on_task_call(self, producer: Any, task_id: str) -> dict[str, Any]:  # noqa: ARG002  # Celery's own interface
        """Note a task that is sent: its result may be asked for."""
        if len(self._ahead.sent) < _AHEAD:
            self._ahead.sent[_subject(self.get_key_for_task(task_id))] = None
        return {}

    def _ready(
        self,
        ids: Iterable[str],
        timeout: float | None,
        interval: float | None,
        on_interval: Callable[[], object] | None,
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield tasks and their results, as they come.

        Raises:
            TimeoutError: Not all came in time.
        """
        waiting = {self.get_key_for_task(each): bytes_to_str(each) for each in ids}
        if not waiting:
            return
        home, ahead, arrivals = self._bus.enter()[0], self._ahead, Arrivals()
        if ahead.home not in (None, home):  # this is a forked process, or it has disconnected
            ahead = self._ahead = _Ahead()
        ahead.home = home
        end = None if timeout is None else time.monotonic() + timeout
        subjects = list(map(_subject, waiting))
        if len(ahead.sent) >= _MANY and not ahead.found.keys() >= set(subjects):
            self._bus.run(ahead.watch_sent)
        others = []
        for each in subjects:
            ahead.sent.pop(each, None)
            event = ahead.found.pop(each, None)
            if event is None:
                others.append(each)
            else:
                arrivals.put(event)
        watched = self._bus.run(ahead.watch, others, arrivals.put) if others else []
        try:
            while waiting:
                left = max(0.0, end - time.monotonic()) if end is not None else None
                pause = min(each for each in (left, interval or 0.5) if each is not None)
                try:
                    event = arrivals.take(pause)
                except queue.Empty:
                    if left is not None and left <= pause:
                        raise CeleryTimeoutError("The operation timed out.") from None
                    if on_interval is not None:
                        on_interval()
                    continue
                if event is None:
                    continue
                value, key = value_of(event), event.subject.removeprefix(_PREFIX)
                meta = None if value is None else self.decode_result(value)
                if meta is not None and meta["status"] in states.READY_STATES and key in waiting:
                    yield waiting.pop(key), meta
        finally:
            if watched or ahead.is_over:
                self._bus.run(ahead.leave, watched)

    def wait_for(
        self,
        task_id: str,
        timeout: float | None = None,
        interval: float = 0.5,
        no_ack: bool = True,  # noqa: ARG002  # of other backends
        on_interval: Callable[[], object] | None = None,
    ) -> dict[str, Any]:
        """Wait for the result of a task.

        Raises:
            TimeoutError: It did not come in time.
        """
        self._ensure_not_eager()
        for _, meta in self._ready([task_id], timeout, interval, on_interval):
            return meta
        raise AssertionError

    def get_many(
        self,
        task_ids: Iterable[str],
        timeout: float | None = None,
        interval: float | None = 0.5,
        no_ack: bool = True,  # noqa: ARG002  # of other backends
        on_message: Callable[[dict[str, Any]], object] | None = None,
        on_interval: Callable[[], object] | None = None,
        max_iterations: int | None = None,  # noqa: ARG002  # it does not poll
        READY_STATES: Any = states.READY_STATES,  # noqa: ARG002, N803  # Celery's own interface
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield tasks and their results, as they come.

        Raises:
            TimeoutError: Not all came in time.
        """
        ids = set(task_ids)  # an iterator is read once
        cached = {each: self._cache[each] for each in ids if each in self._cache}
        yield from cached.items()
        for task_id, meta in self._ready(ids - cached.keys(), timeout, interval, on_interval):
            self._cache[task_id] = meta
            if on_message is not None:
                on_message(meta)
            yield task_id, meta

    def __reduce__(self, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        return super().__reduce__(args, {**(kwargs or {}), "url": self.url})
