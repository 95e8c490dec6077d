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

from redpoll.bus.records import Event
from redpoll.compat.kombu import hub_url, shared_bus
from redpoll.compat.results import fetch, leave, store, value_of, watch
from redpoll.errors import RedpollError

__all__ = ["RedpollBackend"]

_PREFIX: Final = "celery.results."


def _subject(key: str) -> str:
    return f"{_PREFIX}{key}"


class RedpollBackend(KeyValueStoreBackend):  # type: ignore[misc]  # it has no types
    """The results of Celery's tasks at a hub.

    Options of `redpoll.connect` are ``result_backend_transport_options={"redpoll": {…}}``.
    """

    supports_native_join = True
    supports_autoexpire = True
    persistent = True
    key_t = staticmethod(bytes_to_str)

    def __init__(self, url: str | None = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, url=url, **kwargs)
        options = self.app.conf.result_backend_transport_options.get("redpoll", {})
        parts = parse_url(url or "redpoll://")
        names = ("hostname", "port", "userid", "password")
        self._bus, self._let_go = shared_bus(hub_url(*(parts[name] for name in names)), options)

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
        body = value.encode() if isinstance(value, str) else value
        self._bus.run(lambda side: store(side.engine, _subject(key), body, self.expires))

    def delete(self, key: str) -> None:
        """Delete a value."""
        self._bus.run(lambda side: store(side.engine, _subject(key), b"", None))

    def _store_result(self, task_id: str, result: Any, state: str, *args: Any, **kwargs: Any) -> Any:
        if state != states.SUCCESS:  # it may not replace one, which is looked for
            return super()._store_result(task_id, result, state, *args, **kwargs)
        meta = self._get_result_meta(result=result, state=state, traceback=None, request=kwargs.get("request"))
        self.set(self.get_key_for_task(task_id), self.encode({**meta, "task_id": bytes_to_str(task_id)}))
        return result

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
        # The last event of each subject, and the subjects whose events are to be read, in order.
        last: dict[str, Event] = {}
        queued: set[str] = set()
        coming: queue.SimpleQueue[str] = queue.SimpleQueue()

        def take(event: Event) -> None:
            last[event.subject] = event
            if event.subject not in queued:
                queued.add(event.subject)
                coming.put(event.subject)

        end = None if timeout is None else time.monotonic() + timeout
        watched = self._bus.run(lambda side: watch(side.engine, list(map(_subject, waiting)), take))
        try:
            while waiting:
                left = max(0.0, end - time.monotonic()) if end is not None else None
                pause = min(each for each in (left, interval or 0.5) if each is not None)
                try:
                    subject = coming.get(timeout=pause)
                except queue.Empty:
                    if left is not None and left <= pause:
                        raise CeleryTimeoutError("The operation timed out.") from None
                    if on_interval is not None:
                        on_interval()
                    continue
                # In this order: what comes from now on is read now, or queued again.
                queued.discard(subject)
                event = last.pop(subject, None)
                if event is None:
                    continue
                value, key = value_of(event), subject.removeprefix(_PREFIX)
                meta = None if value is None else self.decode_result(value)
                if meta is not None and meta["status"] in states.READY_STATES and key in waiting:
                    yield waiting.pop(key), meta
        finally:
            self._bus.run(lambda _: leave(watched))

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
