"""A proxy on loopback that does to connections what networks do."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import random
import socket
import sys
import warnings
from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal, Protocol, Self

from redpoll.address import Address
from redpoll.errors import Closed, ConfigError, UsageError
from redpoll.testing.faults import CUTS, DIRECTIONS, Chaos, Cut, Direction, Faults, ProxyStats, Step, check_word
from redpoll.testing.passage import Passage
from redpoll.transport.dial import resolve, tune

__all__ = ["Addressed", "FaultProxy", "Scope"]

Scope = Literal["all", "present", "future"]
"""Connections: the open ones, those still to come, or all of them."""

_SCOPES = frozenset(("all", "present", "future"))
_LOG = logging.getLogger("redpoll.testing")
_PASSING = Faults()

#: Backlog of the listening socket: accepted connections that the system keeps for the proxy.
_BACKLOG = 128


class Addressed(Protocol):
    """An object with an address that can be dialled: a node that listens, or another proxy."""

    @property
    def address(self) -> Address:
        """Its address."""


class FaultProxy:
    """Passes connections on to an address, with the faults that a test asks for.

    Args:
        target: Where the connections go: an `Address`, its text ("host:port" or "unix:PATH"), or what has an `address`,
            such as a node. A name is resolved once, when the proxy starts.
        seed: From which all chance comes: the same seed draws the same faults for the first, second, … connection. None
            draws one. What the network makes of them still depends on timing.
        chaos: Random faults on all connections until `calm`; None is none.
        faults: The conditions of new connections, in both directions.
        steps: What happens to each new connection in the course of time.
        buffer: Bytes of one direction of a connection that it reads ahead of what the other side takes, at most.

    Attributes:
        seed: The seed.

    Use it as an async context manager; it listens on a free port of 127.0.0.1 meanwhile, and closes every connection at
    the end. It runs on the event loop that it was started on, for any number of connections; its methods are plain
    functions that belong to that loop, and what they do is done when they return. The loop needs `add_reader`, which
    that of Windows by default has not. Between the two ends of a connection it holds no more than `buffer` bytes each
    way besides what the system's sockets hold: a slow reader slows the writer, also through the proxy.

    Raises:
        UsageError: The target is no address of kind tcp or unix.
        ConfigError: An option has a value that it cannot have.
    """

    def __init__(
        self,
        target: Address | str | Addressed,
        *,
        seed: int | None = None,
        chaos: Chaos | None = None,
        faults: Faults = _PASSING,
        steps: Iterable[Step] = (),
        buffer: int = 65_536,
    ) -> None:
        if not isinstance(target, Address | str) and not hasattr(type(target), "address"):
            raise UsageError(
                f"a proxy passes on to an address, not {type(target).__name__}",
                "an Address, its text, or a node",
            )
        if seed is not None and type(seed) is not int:
            raise ConfigError("seed", seed, "is no whole number")
        if type(buffer) is not int or buffer < 1:
            raise ConfigError("buffer", buffer, "is no number of bytes above 0")
        self._target = self._address_of(target) if isinstance(target, Address | str) else target
        self.seed = int.from_bytes(os.urandom(4)) if seed is None else seed
        self._chaos = chaos
        self._faults = {"forward": faults, "back": faults}
        self._steps = tuple(steps)
        self._bound = buffer
        #: Fate of new connections, besides their conditions.
        self._cut: dict[str, Cut] = {}
        self._frozen: set[str] = set()
        self._state: Literal["new", "running", "closed"] = "new"
        self._numbers = itertools.count(1)
        self._passages: dict[int, Passage] = {}
        self._held: set[int] = set()
        self._counts: Counter[str] = Counter()
        self._loop: asyncio.AbstractEventLoop
        self._address: Address
        self._family = socket.AF_INET
        self._sockaddr: Any = None
        #: A bound socket that keeps the port while the proxy does not listen.
        self._place: socket.socket | None = None
        self._listener: socket.socket | None = None

    # Life

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def start(self) -> None:
        """Listen.

        Raises:
            DialFailed: The name of the target cannot be resolved. Whether anybody listens there is not asked.
            Closed: The target is a node that does not listen.
            ConfigError: It cannot listen.
            UsageError: It was started before, or the loop has no `add_reader`.
        """
        if self._state != "new":
            raise UsageError(f"this proxy is {self._state}: a proxy is started once")
        self._loop = asyncio.get_running_loop()
        target = self._address_of(self._target)
        self._target = target
        if target.kind == "unix":
            self._family, self._sockaddr = socket.AF_UNIX, target.host
        else:
            found = (await resolve(target, self._loop))[0]
            self._family = socket.AF_INET6 if ":" in found.host else socket.AF_INET
            self._sockaddr = socket.getaddrinfo(found.host, found.port, type=socket.SOCK_STREAM)[0][4]
        self._state = "running"
        try:
            self._place = _bound_to(0)
            self._address = Address.of_socket(self._place.getsockname())
            self._listen()
        except OSError as error:
            self.close()
            raise ConfigError("host", "127.0.0.1", f"cannot listen there: {error.strerror}") from error
        except NotImplementedError as error:
            self.close()
            raise UsageError("this event loop has no add_reader", "use asyncio.SelectorEventLoop") from error
        _LOG.info("fault proxy %s -> %s: seed %d", self._address, target, self.seed)

    def close(self) -> None:
        """Stop listening and close every connection; a plain function, also for when the loop is closed. Twice is once."""
        if self._state == "running":
            self._state = "closed"
            self._stop_listening()
            for passage in list(self._passages.values()):
                passage.close()
            if self._place is not None:
                self._place.close()
        self._state = "closed"

    def __del__(self) -> None:
        if getattr(self, "_state", "new") == "running":
            warnings.warn(f"{self!r} was dropped without being closed", ResourceWarning, stacklevel=2)

    def _listen(self) -> None:
        if self._listener is None:
            self._listener = listener = _bound_to(self._address.port)
            listener.listen(_BACKLOG)
            try:
                self._loop.add_reader(listener, self._accept)
            except NotImplementedError:
                listener.close()
                self._listener = None
                raise

    def _stop_listening(self) -> None:
        if self._listener is not None:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    # Connections

    def _accept(self) -> None:
        listener = self._listener
        if listener is None:
            return  # closed in this very turn
        try:
            near, _ = listener.accept()
        except OSError:
            return  # closed again
        number = next(self._numbers)
        self._counts["connections"] += 1
        try:
            far = socket.socket(self._family, socket.SOCK_STREAM)
        except OSError:  # out of descriptors
            self._counts["unreachable"] += 1
            near.close()
            return
        for sock in (near, far):
            sock.setblocking(False)
            tune(sock)
        passage = Passage(
            number,
            near,
            far,
            watcher=self,
            loop=self._loop,
            seed=self.seed,
            faults=(self._faults["forward"], self._faults["back"]),
            bound=self._bound,
        )
        self._passages[number] = passage
        draw = random.Random(f"{self.seed}/{number}")  # noqa: S311 - faults are no secret
        if self._refuses(draw):
            self._counts["refused"] += 1
            passage.close(reset=True)
            return
        for name in sorted(self._frozen):
            passage.freeze(name)  # type: ignore[arg-type]  # one of the two
        for name, how in self._cut.items():
            passage.cut(how, name)  # type: ignore[arg-type]
        passage.dial(self._sockaddr)
        passage.follow(iter(self._steps))
        if self._chaos is not None:
            passage.follow(self._chaos.steps(draw))

    def _refuses(self, draw: random.Random) -> bool:
        return "rst" in self._cut.values() or (self._chaos is not None and self._chaos.refuses(draw))

    def count(self, name: str, number: int = 1) -> None:
        """Count an event; called by connections."""
        self._counts[name] += number

    def moved(self, passage: Passage) -> None:
        """Count bytes that a connection passed on; called by connections."""
        # The oldest first: one that is released moves bytes as well, which releases those before it.
        for number in sorted(each for each in self._held if each < passage.number):
            self._held.discard(number)
            self._passages[number].release()

    def holding(self, passage: Passage) -> None:
        """Hold bytes of a connection back; called by connections."""
        self._held.add(passage.number)

    def closed(self, passage: Passage) -> None:
        """Note the end of a connection; called by connections."""
        self._held.discard(passage.number)
        self._passages.pop(passage.number, None)

    # Faults at a test's request

    def set(self, faults: Faults = _PASSING, direction: Direction = "both", *, to: Scope = "all") -> None:
        """Change the conditions of connections.

        Args:
            faults: What they are from now on; the default is none.
            direction: Which way.
            to: Which connections.

        Raises:
            Closed: It is not running.
            ConfigError: There is no such direction or scope.
        """
        for passage in self._present(to, direction):
            passage.set(faults, direction)
        if to != "present":
            self._faults.update(dict.fromkeys(_ways(direction), faults))

    def cut(self, how: Cut = "rst", direction: Direction = "both", *, to: Scope = "present") -> int:
        """Cut connections; bytes on their way are lost.

        Args:
            how: "fin": both ends are told that the other closed (in one direction: the end that it leads to is).
                "rst": both are told that something broke. "silence": nobody is told, and nothing passes any more:
                half-open in one direction, or in both.
            direction: Which way; a reset takes both.
            to: Which connections. Those to come are reset or silenced as soon as they are made, until `calm`.

        Returns:
            How many connections it cut.

        Raises:
            Closed: It is not running.
            ConfigError: There is no such way to cut, direction or scope; or "fin" for those to come.
        """
        check_word("how", how, CUTS)
        present = self._present(to, direction)
        if to != "present":
            if how == "fin":
                raise ConfigError(
                    "how", how, "is for connections that are there", 'set(Faults(cut_after=0, cut="fin"))'
                )
            self._cut.update(dict.fromkeys(_ways("both" if how == "rst" else direction), how))
        for passage in present:
            passage.cut(how, direction)
        return len(present)

    def freeze(self, direction: Direction = "both", *, to: Scope = "all") -> None:
        """Stop reading and passing on, until `thaw`: the systems' buffers fill, and then the writer waits.

        Args:
            direction: Which way.
            to: Which connections.

        Raises:
            Closed: It is not running.
            ConfigError: There is no such direction or scope.
        """
        for passage in self._present(to, direction):
            passage.freeze(direction)
        if to != "present":
            self._frozen.update(_ways(direction))

    def thaw(self, direction: Direction = "both", *, to: Scope = "all") -> None:
        """End a freeze: nothing was lost, all of it arrives now.

        Args:
            direction: Which way.
            to: Which connections.

        Raises:
            Closed: It is not running.
            ConfigError: There is no such direction or scope.
        """
        for passage in self._present(to, direction):
            passage.thaw(direction)
        if to != "present":
            self._frozen.difference_update(_ways(direction))

    def reorder(self, direction: Direction = "both") -> int:
        """Hold back what the open connections carry until a newer one has passed some bytes, or until `release`.

        Args:
            direction: Which way.

        Returns:
            How many connections are held.

        Raises:
            Closed: It is not running.
            ConfigError: There is no such direction.
        """
        for passage in self._present("present", direction):
            passage.hold(direction)
        return len(self._held)

    def release(self) -> None:
        """Pass on all that is held back.

        Raises:
            Closed: It is not running.
        """
        self._held.clear()
        for passage in self._present("present", "both"):
            passage.release()

    def refuse(self) -> None:
        """Stop listening: the system refuses new connections, until `admit`. Open connections continue.

        Raises:
            Closed: It is not running.
        """
        self._check_running()
        self._stop_listening()

    def admit(self) -> None:
        """Listen again, at the same address.

        Raises:
            Closed: It is not running.
        """
        self._check_running()
        self._listen()

    def calm(self) -> None:
        """End all faults, so that a test can end in peace.

        Chaos and steps are over, conditions are those of a network that is only passed through, what was frozen or held
        continues, new connections are admitted. Connections that were silenced are reset, since nothing can mend them.

        Raises:
            Closed: It is not running.
        """
        self._check_running()
        self._chaos = None
        self._steps = ()
        self._faults = {"forward": _PASSING, "back": _PASSING}
        self._cut.clear()
        self._frozen.clear()
        self._held.clear()
        for passage in list(self._passages.values()):
            passage.forget_steps()
            if passage.silenced:
                passage.close(reset=True)
                continue
            passage.set(_PASSING)
            passage.thaw()
            passage.release()
        self._listen()

    @staticmethod
    def _address_of(target: Address | str | Addressed) -> Address:
        return _dialable(Address.parse(target if isinstance(target, Address | str) else target.address))

    def _present(self, to: Scope, direction: Direction) -> list[Passage]:
        self._check_running()
        check_word("to", to, _SCOPES)
        check_word("direction", direction, DIRECTIONS)
        return list(self._passages.values()) if to != "future" else []

    def _check_running(self) -> None:
        if self._state != "running":
            raise Closed("fault proxy")

    # State

    @property
    def address(self) -> Address:
        """The address to dial.

        Raises:
            Closed: It was not started.
        """
        if self._state == "new":
            raise Closed("fault proxy")
        return self._address

    @property
    def running(self) -> bool:
        """True if it was started and not closed."""
        return self._state == "running"

    def stats(self) -> ProxyStats:
        """Its counters so far: an immutable record."""
        return ProxyStats(open=len(self._passages), **self._counts)

    def __repr__(self) -> str:
        where = "not started" if self._state == "new" else f"{self._address} -> {self._target}"
        return f"<FaultProxy {where}, seed {self.seed}, {self._state}, {len(self._passages)} open>"


def _dialable(address: Address) -> Address:
    if address.kind == "inproc":
        raise UsageError(f"a proxy has no way to {address}", "let the node listen at a tcp or unix address")
    if address.kind == "tcp" and not address.port:
        raise UsageError(f"{address} cannot be dialled", "it needs the port that something listens on")
    return address


def _ways(direction: Direction) -> tuple[str, ...]:
    return ("forward", "back") if direction == "both" else (direction,)


def _bound_to(port: int) -> socket.socket:
    """A socket bound to a port that another one of this process may be bound to as well."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setblocking(False)
    if sys.platform != "win32":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    return sock
