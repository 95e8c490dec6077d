"""The fixture `redpoll_bus`: buses of one test, which meet; what was sent on them; and virtual time."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any, Final, NamedTuple, Self

import pytest

from redpoll.bus import Bus, Engine, EngineState, Envelope, Payloads, Receipt, connect
from redpoll.bus.records import Step
from redpoll.errors import UsageError
from redpoll.testing.virtual import VirtualTime

__all__ = ["BusFactory", "RecordingEngine", "Sent"]

_numbers: Final = count(1)


class Sent(NamedTuple):
    """A message that was published on a bus of `redpoll_bus`.

    Attributes:
        to: Name of the queue, or the subject.
        body: The payload, as the bus reads it.
        envelope: The message.
        options: The options of `Engine.publish`, but for queue and subject.
    """

    to: str
    body: Any
    envelope: Envelope
    options: Mapping[str, Any]


class RecordingEngine:
    """An engine that notes what is published by it.

    Args:
        engine: The engine that does everything.
        payloads: The serializers.
        sent: The list that records it.
    """

    def __init__(self, engine: Engine, payloads: Payloads, sent: list[Sent]) -> None:
        self._engine = engine
        self._payloads = payloads
        self._sent = sent

    def __repr__(self) -> str:
        return repr(self._engine)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def __aenter__(self) -> Self:
        await self._engine.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._engine.__aexit__(*exc_info)

    def publish(
        self, envelope: Envelope, *, queue: str | None = None, subject: str | None = None, **options: Any
    ) -> Awaitable[Receipt]:
        """Note a message and publish it."""
        accepted = self._engine.publish(envelope, queue=queue, subject=subject, **options)
        self._note(queue or subject or "", [envelope], options)
        return accepted

    def publish_many(self, envelopes: Iterable[Envelope], *, queue: str, **options: Any) -> Awaitable[list[Receipt]]:
        """Note messages and publish them."""
        given = list(envelopes)
        accepted = self._engine.publish_many(given, queue=queue, **options)
        self._note(queue, given, options)
        return accepted

    async def publish_steps(self, steps: Sequence[Step], **options: Any) -> list[Receipt]:
        """Note tasks and publish them."""
        accepted = await self._engine.publish_steps(steps, **options)
        for each, *_ in steps:
            self._note(each.queue, [each.envelope], {})
        return accepted

    def _note(self, to: str, envelopes: list[Envelope], options: dict[str, Any]) -> None:
        self._sent += [Sent(to, self._payloads.unpack(each), each, options) for each in envelopes]


class BusFactory:
    """Makes buses for a test: the fixture `redpoll_bus`.

    Args:
        url: The engine: of ``--redpoll-engine``, or ``memory://``, of which the test has one of its own.

    Attributes:
        sent: The publishes of the test's buses, in order.
        buses: The buses that were made.
    """

    def __init__(self, url: str = "memory://") -> None:
        self.sent: list[Sent] = []
        self.buses: list[Bus] = []
        self._private = url == "memory://"
        self._url = f"{url}pytest-{os.getpid()}-{next(_numbers)}" if self._private else url
        self._time: VirtualTime | None = None

    def __call__(self, **options: Any) -> Bus:
        """Make a bus; use it as an async context manager. The buses of one test meet each other.

        Args:
            **options: As for `redpoll.connect`.

        Raises:
            ConfigError: As for `redpoll.connect`.
        """
        if self._time is not None:
            options.setdefault("clock", self._time)
        made = connect(self._url, **options)
        recording: Any = [RecordingEngine(each, made.payloads, self.sent) for each in made.engines]
        bus = Bus(
            recording[0],
            made.payloads,
            exceptions=options.get("exceptions", ()),
            rpc=made.rpc.options,
            notifications=made.notifications.options,
            others=recording[1] if recording[1:] else None,
        )
        self.buses.append(bus)
        return bus

    @property
    def time(self) -> VirtualTime:
        """Virtual time of the buses that are made from now on: ``await redpoll_bus.time.advance(60)``.

        A test that asks for it is skipped on an engine that has none.

        Raises:
            UsageError: A bus was made before, which lives in real time.
        """
        if not self._private:
            pytest.skip(f"{self._url} has no virtual time")
        if self._time is None:
            if self.buses:
                raise UsageError("a bus was made before its time", "ask for redpoll_bus.time first")
            self._time = VirtualTime()
        return self._time

    def forgotten(self) -> list[Bus]:
        """The buses that were not closed."""
        return [bus for bus in self.buses if bus.state not in {EngineState.CONNECTING, EngineState.CLOSED}]
