"""Many tasks published in order, for engines whose `publish_many` is made of `publish`."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypedDict

from redpoll.bus.awaitables import Done, Failed
from redpoll.bus.engine import Engine, Watcher
from redpoll.bus.envelope import Envelope
from redpoll.bus.records import Receipt, check_publishing
from redpoll.errors import BatchError, PayloadTooLarge, RedpollError, UsageError

__all__ = ["BatchOptions", "publish_all"]

_log = logging.getLogger("redpoll.bus")

#: A loop keeps no task alive.
_withdrawing: set[asyncio.Task[None]] = set()


class BatchOptions(TypedDict, total=False):
    """Options of `Engine.publish_many`."""

    watchers: Iterable[Watcher] | None
    dedup: Iterable[str] | None
    priority: int
    delay: float
    ttl: float | None
    keep: bool
    timeout: float | None


def publish_all(
    engine: Engine,
    envelopes: Iterable[Envelope],
    window: int,
    max_body: int,
    *,
    queue: str,
    watchers: Iterable[Watcher] | None = None,
    dedup: Iterable[str] | None = None,
    timeout: float | None = None,
    priority: int = 0,
    delay: float = 0.0,
    ttl: float | None = None,
    keep: bool = True,
) -> Awaitable[list[Receipt]]:
    """Publish many tasks. See `redpoll.bus.engine.Engine.publish_many`.

    Args:
        engine: The engine.
        envelopes: The messages.
        window: Maximum number of unconfirmed publishes.
        max_body: Maximum size of a body, in bytes.
        queue: As for `Engine.publish_many`, as what follows.
        watchers: As there.
        dedup: As there.
        timeout: As there.
        priority: As there.
        delay: As there.
        ttl: As there.
        keep: As there.
    """
    items = list(envelopes)
    count = len(items)
    watched: list[Watcher | None] = [None] * count if watchers is None else list(watchers)
    keys: list[str | None] = [None] * count if dedup is None else list(dedup)
    if not count == len(watched) == len(keys):
        raise UsageError(f"{count} envelopes have {len(watched)} watchers and {len(keys)} keys")
    for envelope in items:
        if len(envelope.body) > max_body:
            raise PayloadTooLarge(len(envelope.body), max_body)
    for key in keys:
        check_publishing(priority, delay, ttl, None, timeout, key)
    options: dict[str, Any] = {"queue": queue, "priority": priority, "delay": delay, "ttl": ttl, "keep": keep}
    clock = engine.clock
    end = None if timeout is None else clock.time() + timeout
    left: Iterator[tuple[Envelope, Watcher | None, str | None]] = iter(zip(items, watched, keys, strict=True))
    receipts: list[Receipt] = []
    unconfirmed: deque[Awaitable[Receipt]] = deque()

    def fill() -> None:
        nonlocal left
        while len(unconfirmed) < window and (item := next(left, None)) is not None:
            envelope, watcher, key = item
            seconds = None if end is None else max(0.0, end - clock.time())
            try:
                receipt = engine.publish(envelope, watcher=watcher, dedup=key, timeout=seconds, **options)
            except Exception as error:
                if not receipts and not unconfirmed:
                    raise  # nothing was published
                receipt, left = Failed(error), iter(())
            if type(receipt) is Receipt and not unconfirmed:
                receipts.append(receipt)
            else:
                unconfirmed.append(receipt)

    async def confirm() -> list[Receipt]:
        try:
            while unconfirmed:
                receipts.append(await unconfirmed.popleft())
                fill()
        except RedpollError as error:
            raise BatchError(len(receipts), len(receipts), error) from error
        finally:
            if unconfirmed:
                # Cancelling the wait again leaves none of them to itself.
                await asyncio.shield(_withdraw(unconfirmed))
        return receipts

    fill()
    if not unconfirmed:
        return Done(receipts)
    confirming = asyncio.ensure_future(confirm())
    confirming.add_done_callback(partial(_look_after, unconfirmed))
    return confirming


def _look_after(unconfirmed: deque[Awaitable[Receipt]], _: asyncio.Task[list[Receipt]]) -> None:
    """Withdraw the publishes of a task that was cancelled before it began, in which nothing of it ran."""
    if unconfirmed:
        _withdraw(unconfirmed)


def _withdraw(unconfirmed: deque[Awaitable[Receipt]]) -> asyncio.Task[None]:
    """Withdraw the publishes behind one that failed, or was cancelled, as far as they wait; log what they fail with."""
    tasks = [asyncio.ensure_future(unconfirmed.popleft()) for _ in range(len(unconfirmed))]
    withdrawing = asyncio.ensure_future(_cancel(tasks))
    _withdrawing.add(withdrawing)
    withdrawing.add_done_callback(_withdrawing.discard)
    return withdrawing


async def _cancel(tasks: Sequence[asyncio.Future[Receipt]]) -> None:
    await asyncio.sleep(0)  # cancelling reaches what has begun
    for task in tasks:
        task.cancel()
    for end in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(end, Exception):
            _log.debug("a publish behind one that failed, failed too: %s", end)
