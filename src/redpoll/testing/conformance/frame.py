"""Behaviours, their settings, and their runs."""

from __future__ import annotations

import asyncio
import logging
import os
import time
import unittest
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import count
from typing import Any, Final, Literal, cast

from redpoll import blocking
from redpoll.bus import Bus, Delivery, Envelope, Event, Outcome, OutcomeKind, Payloads, QueueSpec, connect
from redpoll.bus.engine import Engine
from redpoll.errors import RedpollError
from redpoll.testing.conformance.faces import Awaited, begin
from redpoll.testing.virtual import VirtualTime

__all__ = [
    "Behaviour",
    "NotCovered",
    "Place",
    "Recorder",
    "Setting",
    "attempt",
    "behaviour",
    "behaviours",
    "fails",
    "observe",
    "table",
]

#: The modules with behaviours, one for each area of the bus.
_MODULES: Final = ("broadcast", "engine", "notifications", "rpc", "tasks")

_runs = count(1)
_log = logging.getLogger("redpoll.testing")


class NotCovered(unittest.SkipTest):
    """A behaviour that the engine rules out. pytest and unittest skip a test that raises it."""


class Recorder:
    """A watcher, a listener, and a sink for deliveries and for events, which remembers what came.

    Attributes:
        parts: Progress.
        outcomes: Outcomes; there is never more than one.
        error: Why there will be none.
        deliveries: Deliveries.
        events: Events: subjects and payloads.
        heard: The calls of a listener: "lost", "cancelled", or the publisher's message.
    """

    def __init__(self) -> None:
        self.parts: list[Any] = []
        self.outcomes: list[Outcome] = []
        self.error: RedpollError | None = None
        self.deliveries: list[Delivery] = []
        self.events: list[tuple[str, Any]] = []
        self.heard: list[Any] = []

    def progress(self, envelope: Envelope) -> None:
        """Take progress."""
        self.parts.append(_payloads.unpack(envelope))

    def outcome(self, outcome: Outcome) -> None:
        """Take the outcome."""
        self.outcomes.append(outcome)

    def gone(self, error: RedpollError) -> None:
        """Learn that there will be none."""
        self.error = error

    def deliver(self, delivery: Delivery) -> None:
        """Take a delivery."""
        self.deliveries.append(delivery)

    def has(self, number: int) -> bool:
        """Return True if there were so many deliveries."""
        return len(self.deliveries) >= number

    def event(self, event: Event) -> None:
        """Take an event."""
        self.events.append((event.subject, _payloads.unpack(event.envelope)))

    def lost(self) -> None:
        """Learn that the task is lost."""
        self.heard.append("lost")

    def cancelled(self, _: str) -> None:
        """Learn that the work is not wanted."""
        self.heard.append("cancelled")

    def told(self, envelope: Envelope) -> None:
        """Take what the publisher says."""
        self.heard.append(_payloads.unpack(envelope))

    @property
    def kind(self) -> OutcomeKind | None:
        """Return the outcome of the task; None if it did not end."""
        return self.outcomes[0].kind if self.outcomes else None

    @property
    def result(self) -> Any:
        """The payload of the outcome."""
        envelope = self.outcomes[0].envelope
        return None if envelope is None else _payloads.unpack(envelope)

    @property
    def bodies(self) -> list[Any]:
        """The payloads of the deliveries."""
        return [_payloads.unpack(each.envelope) for each in self.deliveries]


_payloads: Final = Payloads()


@dataclass(frozen=True)
class Setting:
    """The way in which the suite reaches an engine.

    Subclass it where killing a worker takes more than ``engine.abort()``, and where the engine has a server to restart.
    """

    url: str
    """The URL, without what makes it private: each run opens several buses, which have to meet. For ``memory://`` the suite
    chooses names."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Options for `connect`."""

    face: Literal["async", "blocking"] = "async"
    """The face on which behaviours are tried: `redpoll.connect` or `redpoll.blocking.connect`."""

    patience: float = 5.0
    """Real seconds after which something that should happen is taken not to."""

    def connect(self, place: Place) -> Bus:
        """Make a bus; those of one place meet each other."""
        make: Any = blocking.connect if self.face == "blocking" else connect
        made: Any
        if self.url != "memory://":
            made = make(self.url, **self.options)
        else:
            made = make(f"memory://{place.prefix}", clock=place.clock, **self.options)
        return cast("Bus", Awaited(made)) if self.face == "blocking" else made

    def clock(self) -> VirtualTime | None:
        """The virtual time of a place, where the engine takes one."""
        return VirtualTime() if self.url == "memory://" else None

    async def restart(self) -> None:
        """Kill or stop the engine's server, start it again, and wait until it serves.

        Raises:
            NotCovered: There is none, or the suite does not know how. A subclass may.
        """
        known = (
            "memory:// has no server"
            if self.url == "memory://"
            else "the suite does not know how to restart the server"
        )
        raise NotCovered(known)

    async def kill(self, bus: Bus) -> None:
        """End a bus as if its process had been killed.

        Raises:
            NotCovered: That cannot be done.
        """
        home = bus._target._home if isinstance(bus, Awaited) else None
        abort = getattr((bus if home is None else home.bus).engine, "abort", None)
        if abort is None:
            raise NotCovered("the suite does not know how to kill a worker of this engine")
        if home is None:
            abort()
        else:
            await asyncio.to_thread(home.handover.run, abort)


class Place:
    """The place of one behaviour: buses that meet, names that nobody else uses, time.

    Args:
        setting: The way in which the engine is reached.

    Attributes:
        setting: The same.
        prefix: Begins the names of this run.
        clock: Virtual time, where the engine takes one.
    """

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.prefix = f"conformance-{os.getpid()}-{next(_runs)}"
        self.clock = setting.clock()
        self._buses: list[Bus] = []
        self._names: list[str] = []

    async def open(self, **options: Any) -> Bus:
        """Open a bus, with options of `connect` beside those of the setting; it is closed when the behaviour is over."""
        setting = replace(self.setting, options={**self.setting.options, **options}) if options else self.setting
        bus = setting.connect(self)
        await bus.__aenter__()
        self._buses.append(bus)
        if self.clock is not None and isinstance(bus, Awaited):
            # The clock waits for the loops that it knows, which are those that have asked for something.
            await asyncio.to_thread(bus._target._home.handover.run, self.clock.call_at, 0.0, bool)
        return bus

    async def engine(self) -> Engine:
        """Open a bus, and return its engine.

        Raises:
            NotCovered: The face is the blocking one.
        """
        if self.setting.face == "blocking":
            raise NotCovered("the engine is the same for both faces")
        return (await self.open()).engine

    def only_async(self, what: str) -> None:
        """Rule the behaviour out for the blocking face, because of what it needs.

        Raises:
            NotCovered: The face is the blocking one.
        """
        if self.setting.face == "blocking":
            raise NotCovered(f"the blocking face has no {what}")

    def begin(self, verb: Callable[..., Any], *args: Any, **kwargs: Any) -> asyncio.Future[Any]:
        """Begin a verb before time goes by; cancelling what is returned cancels it."""
        return begin(verb, *args, **kwargs)

    async def kill(self, victim: Engine | Bus) -> None:
        """End a bus, or that of an engine, as if its process had been killed."""
        bus = next(each for each in self._buses if each is victim or getattr(each, "engine", None) is victim)
        await self.setting.kill(bus)

    def name(self, text: str) -> str:
        """A name that nobody else uses; a subject with it as its first word is nobody else's either."""
        return f"{self.prefix}.{text}"

    def clean(self, queue: str) -> None:
        """Delete a queue when the behaviour is over."""
        self._names.append(queue)

    async def queue(self, engine: Engine, text: str = "q", **spec: Any) -> str:
        """Declare a queue, and return its name."""
        name = self.name(text)
        await engine.declare(QueueSpec(name, **spec))
        self.clean(name)
        return name

    async def consume(self, engine: Engine, queue: str, credit: int = 1, **options: Any) -> Recorder:
        """Consume from a queue into a recorder."""
        recorder = Recorder()
        await engine.consume(queue, credit=credit, sink=recorder.deliver, **options)
        return recorder

    def time(self) -> float:
        """Return the time in seconds, virtual where there is such."""
        return time.monotonic() if self.clock is None else self.clock.time()

    async def wait(self, seconds: float) -> None:
        """Let time go by, virtual where there is such."""
        if self.clock is not None:
            await self.clock.advance(seconds)
        else:
            await asyncio.sleep(seconds)

    async def until(self, reached: Callable[[], object]) -> None:
        """Wait until something is so; fail if it does not become so."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self.setting.patience
        while not reached():
            if loop.time() > end:
                raise AssertionError("it did not happen in time")
            await asyncio.sleep(0 if self.clock is not None and self.setting.face == "async" else 0.002)

    async def calm(self) -> None:
        """Give what should not happen the time to happen."""
        if self.clock is None:
            await asyncio.sleep(0.2)
        elif self.setting.face == "async":
            await self.clock.advance(0)
        else:
            # Threads are no turns of a loop.
            await asyncio.sleep(0.02)
            await self.clock.advance(0)

    async def close(self) -> None:
        """Close what is open."""
        for bus in self._buses:
            for name in self._names:
                try:
                    await bus.queues.delete(name)
                except RedpollError:
                    continue  # it is gone, or the bus is
            await bus.close()


def attempt(of: Engine | Bus, number: int) -> int:
    """Return the attempt at a hand-out after give-backs: its number where all hand-outs count, else 1."""
    return number if of.capabilities.attempts == "given" else 1


Check = Callable[[Place], Awaitable[None]]


@dataclass(frozen=True)
class Behaviour:
    """Something that an engine has to do."""

    id: str
    """Its number; those of other libraries' behaviours are theirs."""

    text: str
    """One line that describes it."""

    check: Check
    """The function that tries it."""

    needs: tuple[str, ...] = ()
    """Names of `Capabilities` without which it is ruled out."""

    def __str__(self) -> str:
        return self.id

    def run(self, setting: Setting, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None) -> None:
        """Try it on an event loop of its own.

        Raises:
            NotCovered: The engine's capabilities rule it out.
            AssertionError: It does not hold.
        """
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(self._run(setting))

    async def _run(self, setting: Setting) -> None:
        place = Place(setting)
        try:
            bus = await place.open()
            for name in self.needs:
                value = getattr(bus.capabilities, name)
                if value in {False, "none", "live"} or (name == "priorities" and value == 1):
                    raise NotCovered(f"{self.id}: {bus.capabilities.engine}:// has {name}={value!r}")
            await self.check(place)
        finally:
            await place.close()


_found: dict[str, Behaviour] = {}


def behaviour(number: str, *needs: str) -> Callable[[Check], Check]:
    """Write a behaviour down; the first line of its docstring is its text.

    Args:
        number: Its id.
        *needs: Names of `Capabilities` without which it is ruled out.
    """

    def write_down(check: Check) -> Check:
        if number in _found:
            raise ValueError(f"there are two behaviours {number}")
        _found[number] = Behaviour(number, (check.__doc__ or "").partition("\n")[0], check, needs)
        return check

    return write_down


async def fails(awaited: Awaitable[object], error: type[Exception] | tuple[type[Exception], ...]) -> Any:
    """Await something that has to raise an error, or one of several, and return that."""
    try:
        await awaited
    except error as raised:
        return raised
    names = " or ".join(each.__name__ for each in (error if isinstance(error, tuple) else (error,)))
    raise AssertionError(f"it did not raise {names}")


def behaviours(*areas: str) -> list[Behaviour]:
    """All behaviours, or those of some areas: "broadcast", "engine", "notifications", "rpc", "tasks"."""
    chosen = areas or _MODULES
    for area in chosen:
        import_module(f"redpoll.testing.conformance.{area}")
    found = [each for each in _found.values() if each.check.__module__.split(".")[3] in chosen]
    return sorted(found, key=lambda each: each.id)


def observe(setting: Setting, chosen: Iterable[Behaviour] | None = None) -> dict[str, str]:
    """Try behaviours on an engine, and say of each, by its id, what was seen: "yes", "no", or what rules it out.

    Args:
        setting: The way in which the engine is reached.
        chosen: The behaviours; None is all of them.
    """
    seen: dict[str, str] = {}
    for each in behaviours() if chosen is None else chosen:
        try:
            each.run(setting)
        except NotCovered as reason:
            seen[each.id] = f"not covered: {str(reason).removeprefix(f'{each.id}: ')}"
        except Exception as error:  # noqa: BLE001  # whatever it raises, it does not hold
            _log.error("%s does not hold on %s", each.id, setting.url, exc_info=error)
            seen[each.id] = "no"
        else:
            seen[each.id] = "yes"
    return seen


def table(seen: Mapping[str, Mapping[str, str]], order: Iterable[Behaviour]) -> str:
    """A table in Markdown of what engines did.

    Args:
        seen: The result of each behaviour ("yes", "no", why it was skipped), by the engine and by the behaviour's id.
        order: The behaviours, in the order of the rows.
    """
    engines = list(seen)
    lines = [f"| | behaviour | {' | '.join(engines)} |", f"|---|---|{'---|' * len(engines)}"]
    for each in order:
        cells = " | ".join(seen[engine].get(each.id, "") for engine in engines)
        lines.append(f"| {each.id} | {each.text} | {cells} |")
    return "\n".join(lines) + "\n"
