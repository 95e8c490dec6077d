"""The bodies on disk that a hub has in memory too: those of the newest tasks and outcomes, and of tasks that are next."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final

from redpoll.bus.broker.broker import Broker
from redpoll.bus.broker.limits import CHARGE
from redpoll.bus.broker.outputs import Changed, Dead, Ended, Put, Write
from redpoll.bus.broker.queue import GONE, Queue, Task
from redpoll.errors import StoreError

__all__ = ["Recent"]

_BODIES: Final = frozenset({Put, Changed})
# Tasks that are read ahead, and their bytes.
_AHEAD: Final = 256
_AHEAD_BYTES: Final = 2**20


class Recent:
    """Drops payloads of a broker that its store has, the oldest first.

    Args:
        broker: The broker.
        limit: Bytes that stay in memory.
    """

    def __init__(self, broker: Broker, limit: float) -> None:
        self._broker = broker
        self._limit = limit
        # Bodies read ahead are not to be dropped for later ones.
        self._ahead = min(_AHEAD_BYTES, limit / 2)
        self._bytes = 0
        # Tasks with their payloads; and outcomes, by the numbers of their tasks.
        self._kept: deque[tuple[Task | int, Any, int]] = deque()

    def stored(self, writes: Iterable[Write]) -> None:
        """Note that the store has these writes."""
        kept, tasks, size = self._kept, self._broker.tasks.found, 0
        write: Any
        for write in writes:
            kind = type(write)
            if kind in _BODIES:
                task = tasks.get(write.id)
            elif kind is Dead:
                queue = self._broker.queues.found.get(write.queue)
                task = None if queue is None else queue.dead.get(write.id)
            else:
                if kind is Ended and write.keep:
                    kept.append((write.id, None, write.size + CHARGE))
                    size += write.size + CHARGE
                continue
            # A newer payload is a later write's.
            if task is not None and task.payload is write.payload is not None:
                kept.append((task, write.payload, task.size))
                size += task.size
        self._bytes += size
        self._drop()

    def ahead(self, queue: Queue) -> list[Task]:
        """Return tasks whose bodies are to be read as the next ones of a queue, beside one that waits for its own."""
        found, size = [], 0
        for task in islice(queue.in_line(), _AHEAD):
            size += task.size
            if size > self._ahead:
                break
            if task.payload is None:
                found.append(task)
        return found

    def read(self, tasks: Sequence[Task], bodies: Sequence[bytes | StoreError]) -> None:
        """Keep bodies that were read ahead; one that is damaged is read again for its worker."""
        for task, body in zip(tasks, bodies, strict=True):
            if isinstance(body, bytes) and task.payload is None and task.state != GONE:
                task.payload = body
                self._kept.append((task, body, task.size))
                self._bytes += task.size
        self._drop()

    def _drop(self) -> None:
        """Drop the oldest beyond the limit."""
        kept = self._kept
        while self._bytes > self._limit:
            what, payload, size = kept.popleft()
            self._bytes -= size
            if isinstance(what, int):
                self._broker.tasks.results.drop(what)
            elif what.payload is payload:
                what.payload = None
