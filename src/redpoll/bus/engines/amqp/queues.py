"""The queues of an engine on RabbitMQ: declared, changed, deleted, looked at."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from typing import Final, Literal

from redpoll.bus.engines.amqp import topology as t
from redpoll.bus.engines.amqp.lacking import WITH_HUB
from redpoll.bus.engines.amqp.link import Broken, Rejected
from redpoll.bus.engines.amqp.member import AmqpMember
from redpoll.bus.engines.amqp.session import refusal_of
from redpoll.bus.records import (
    QueueInfo,
    QueueSpec,
    check_subject,
)
from redpoll.errors import (
    NoRoute,
    SpecConflict,
    Unsupported,
)

__all__ = ["AmqpQueues"]

_log = logging.getLogger("redpoll.bus")

#: Fields of a spec that change here; others are arguments of a queue.
_CHANGING: Final = ("max_attempts", "dead_letter", "topics", "ttl")

#: No `max_attempts`, or one that nobody asked for.
_DEFAULT_ATTEMPTS: Final = frozenset({None, QueueSpec("q").max_attempts})


class AmqpQueues(AmqpMember):
    """See `redpoll.bus.engine.Engine`. The arguments are those of `AmqpMember`."""

    async def declare(self, spec: QueueSpec, *, update: bool = False) -> None:
        """Make sure that a queue is there."""
        self._check()
        if self.results is None and not spec.durable and spec.max_attempts not in _DEFAULT_ATTEMPTS:
            hint = f"let it be durable, or {WITH_HUB}"
            raise Unsupported("amqp", f"max_attempts={spec.max_attempts} of a queue that is not durable", hint)
        await self.session.linked()
        await self.catalogue.known()
        known = self.catalogue.specs.get(spec.name)
        if known is not None and known != spec:
            if await self._exists(spec.name):
                await self._update(known, spec, update)
                return
            # It expired, or an operator deleted it.
            await self.catalogue.write("delete", spec.name, None)
            known = None
        await self._create(spec, new=known is None)
        if self.results is not None:
            await self.results.declare(spec)
        if known is None:
            counts = await self.catalogue.write("new", spec.name, spec)
            field = None if counts is None else counts.difference(spec)
            if field is not None:
                raise SpecConflict(spec.name, field, getattr(counts, field), getattr(spec, field))
            self.parts.note("declared", spec.name)

    async def _create(self, spec: QueueSpec, *, new: bool = False) -> None:
        while True:
            await self.session.linked()
            try:
                for declaration in t.queues(spec, self.session.several):
                    await self.session.declare_queue(declaration, any_kind=not spec.durable)
                if spec.dead_letter is not None:
                    for name in t.levels(spec):
                        await self.session.ask("queue.bind", 0, spec.dead_letter, t.DEAD, name, 0, {})
                if new and (spec.durable or self.session.several):
                    await self.session.secure_queues()
            except Rejected as error:
                raise refusal_of(error, spec.name) from error
            except Broken:
                continue
            return

    async def _update(self, known: QueueSpec, spec: QueueSpec, update: bool) -> None:
        field = known.difference(spec) or ""
        if not update or field in {"kind", "durable"}:
            raise SpecConflict(spec.name, field, getattr(known, field), getattr(spec, field))
        fixed = known.difference(replace(spec, **{name: getattr(known, name) for name in _CHANGING}))
        if fixed is not None or (spec.kind == "events" and spec.ttl != known.ttl):
            what = f"changing {fixed or 'ttl'} of a queue"
            raise Unsupported("amqp", what, "set a policy at RabbitMQ, or delete the queue and declare it anew")
        await self._create(spec)
        ask = self.session.ask_again
        for topic in set(known.topics) - set(spec.topics):
            await ask("queue.unbind", 0, spec.name, t.EVENTS, topic, {})
        if known.dead_letter != spec.dead_letter:
            for name in t.levels(known):
                await ask("queue.unbind", 0, t.dead_queue(known), t.DEAD, name, {})
        await self.catalogue.write("update", spec.name, spec)
        if self.results is not None:
            await self.results.declare(spec)
        self.parts.note("declared", spec.name)

    async def _exists(self, queue: str) -> bool:
        await self.catalogue.known()
        try:
            await self.session.look(queue)
        except Rejected as error:
            if error.code != 404:
                raise refusal_of(error, queue) from error
            return False
        return True

    async def delete(self, queue: str, *, if_unused: bool = False) -> None:
        """Delete a queue."""
        check_subject("queue", queue)
        self._check()
        if self.results is not None:
            # The hub first where it may refuse: RabbitMQ's queue, or schedules, would be gone by then.
            await self.results.check_administer(queue)
            await self.results.schedules.check_remove_for(queue)
        if not await self._exists(queue):
            if queue in self.catalogue.specs:
                await self._forget(queue)
            raise NoRoute(queue)
        spec = self.catalogue.specs.get(queue, QueueSpec(queue))
        if if_unused:
            found = await self.inspect(queue)
            if found.ready or found.consumers or found.taken:
                return
        names = t.levels(spec)
        if spec.durable and spec.dead_letter is None and spec.kind == "task":
            names.append(t.dead_queue(spec))
        try:
            for name in names:
                await self.session.ask_again("queue.delete", 0, name, 0)
        except Rejected as error:
            raise refusal_of(error, queue) from error
        await self._forget(queue)

    async def _forget(self, queue: str) -> None:
        """Remove what belongs to a queue that is gone, its spec last: until then `delete` can be tried again."""
        if self.results is not None:
            await self.results.schedules.remove_for(queue)
            await self.results.delete(queue)
        await self.catalogue.write("delete", queue, None)

    async def queues(self) -> list[str]:
        """Return the names of the queues that programs of redpoll have declared."""
        self._check()
        await self.session.linked()
        # A round trip, for `Bus.healthy`.
        await self.session.look(self.inbox.name)
        if self.results is not None:
            await self.results.hub.queues()
        return list(self.catalogue.specs)

    async def inspect(self, queue: str) -> QueueInfo:
        """Return what the server says of a queue, ready tasks and consumers, and what this program did with it."""
        check_subject("queue", queue)
        self._check()
        spec = self.catalogue.specs.get(queue)
        ready = consumers = dead = 0
        try:
            for name in [queue] if spec is None else t.levels(spec):
                messages, count = await self.session.look(name)
                ready, consumers = ready + messages, max(consumers, count)
        except Rejected as error:
            raise refusal_of(error, queue) from error
        if spec is not None and spec.durable and spec.kind == "task":
            with suppress(Rejected):
                dead, _ = await self.session.look(t.dead_queue(spec))
        counts = self.parts.counts(queue)
        return QueueInfo(
            spec=spec or QueueSpec(queue),
            ready=ready,
            delayed=counts.delayed,
            taken=counts.taken,
            dead=dead,
            bytes=0,
            consumers=consumers,
            paused=False,
            waiting=0,
            submitted=counts.submitted,
            delivered=counts.delivered,
            done=counts.done,
            requeued=counts.requeued,
            expired=counts.expired,
            cancelled=counts.cancelled,
            dropped=counts.dropped,
        )

    async def purge(self, queue: str, state: Literal["ready", "dead"] = "ready") -> int:
        """Remove the tasks that wait, or the dead letters; their publishers are told by a hub beside RabbitMQ."""
        check_subject("queue", queue)
        self._check()
        spec = self.catalogue.specs.get(queue, QueueSpec(queue))
        removed = 0
        if self.results is not None:
            await self.results.check_administer(queue)
        try:
            for name in t.levels(spec) if state == "ready" else [t.dead_queue(spec)]:
                (count,) = await self.session.ask_again("queue.purge", 0, name, 0)
                removed += count
        except Rejected as error:
            raise refusal_of(error, queue) from error
        if self.results is not None:
            await self.results.purge(queue, state)
        return removed
