"""Resolution of names: this wiring's own, those of its process, those of the directory."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from redpoll.address import Address
from redpoll.errors import ConfigError, DirectoryUnavailable, RedpollError, ScopeError, UnknownName
from redpoll.wiring.board import Board
from redpoll.wiring.connection import Connection
from redpoll.wiring.directory.client import DirectoryClient, unavailable
from redpoll.wiring.directory.entries import Entry, Kind
from redpoll.wiring.inprocess import Neighbour
from redpoll.wiring.names import Scope, Style, check_kind
from redpoll.wiring.network import Net
from redpoll.wiring.reach import WILDCARDS

__all__ = ["Resolver"]

#: Seconds for one request to the directory, and for one link to another wiring.
_LOOKUP = 5.0
_CONNECT = 5.0


class Resolver:
    """The names of one wiring, and lookups of others.

    Args:
        board: The exchanges and queues with the names.
        net: The node that others dial.
        neighbour: This wiring as others of its process see it.
        directory: The client of the directory; None for none.
        advertise: Host, and port or 0, at which others reach it; None for the address of the node.
        hosts: The hosts at which the node listens.
        timeout: Seconds for the directory to register a name.
    """

    def __init__(
        self,
        board: Board,
        net: Net,
        neighbour: Neighbour,
        directory: DirectoryClient | None,
        advertise: tuple[str, int] | None,
        hosts: tuple[str, ...],
        timeout: float | None,
    ) -> None:
        self._board = board
        self._net = net
        self._neighbour = neighbour
        self._directory = directory
        self._advertise = advertise
        self._hosts = hosts
        self._timeout = timeout
        self._identity = net.node.identity
        #: Names that the directory is being asked for, with the number of requests.
        self._asked: Counter[tuple[Kind, str]] = Counter()
        #: Names that it is about to be asked for.
        self._asking: dict[tuple[Kind, str], _Question] = {}

    # Own names

    @property
    def address(self) -> Address:
        """The address at which others reach this wiring: on all interfaces, the one from which the directory was dialled."""
        own = self._net.node.address
        if self._advertise is not None:
            host, port = self._advertise
            return Address.of_host(host, port or own.port)
        near = None if self._directory is None else self._directory.local_host
        return Address.of_host(near, own.port) if near is not None and _wildcard(near) in self._hosts else own

    def check_scope(self, scope: object) -> None:
        """Validate a scope.

        Raises:
            UsageError: It is no `Scope`.
            ScopeError: It is GLOBAL and there is no directory.
        """
        check_kind("scope", scope, Scope)
        if scope is Scope.GLOBAL and self._directory is None:
            raise ScopeError("a GLOBAL name needs a directory", 'Wiring(directory="host:5682"), or scope=PROCESS')

    async def claim(self, kind: Kind, name: str, scope: Scope, style: Style | None) -> None:
        """Claim a name in its scope; on an error it is released. Waits for the lease of a lost owner.

        Raises:
            NameTaken: Another owner has it; also the errors of `DirectoryClient.register`.
        """
        if scope is Scope.LOCAL:
            return
        self._neighbour.claim(kind, name)
        if scope is not Scope.GLOBAL or self._directory is None:
            return
        try:
            address = await self._public_address(self._directory)
            self._board.address = str(address)
            await self._directory.register(
                kind, name, address, style, self._identity, timeout=self._timeout, until_free=True
            )
        except BaseException:
            self._neighbour.release(kind, name)
            raise

    async def give_up(self, kind: Kind, name: str, scope: Scope) -> None:
        """Release a name."""
        if scope is Scope.LOCAL:
            return
        self._neighbour.release(kind, name)
        if scope is Scope.GLOBAL and self._directory is not None:
            with suppress(DirectoryUnavailable):
                # The directory is told when it is back.
                await self._directory.unregister(kind, name)

    async def _public_address(self, directory: DirectoryClient) -> Address:
        """Return the address at which others reach this wiring; this may wait for a link to the directory."""
        if self._advertise is None and not WILDCARDS.isdisjoint(self._hosts):
            await directory.ready(timeout=self._timeout)
            host = directory.local_host
            if host is not None and WILDCARDS.issuperset(self._hosts) and _wildcard(host) not in self._hosts:
                raise ConfigError(
                    "host",
                    ", ".join(self._hosts),
                    f"this wiring listens on no interface by which the directory is reached: the link is from {host}",
                    "listen there too, or say with advertise= what others dial",
                )
        return self.address

    # Names of others

    async def find(self, kind: Kind, name: str, *, is_global: bool = False) -> Connection:
        """Return the connection to the owner of a name.

        Args:
            kind: "exchange" or "queue".
            name: The name.
            is_global: Find GLOBAL names only, on behalf of another process.

        Raises:
            UnknownName: The name has no owner; also the errors of the directory and of `Net.connect`.
        """
        own = self._board.exchanges.get(name) if kind == "exchange" else self._board.queues.get(name)
        if own is not None and (not is_global or own.scope is Scope.GLOBAL):
            return self._board.local
        connection = self._neighbour.find(kind, name, is_global=is_global)
        if connection is not None:
            return connection
        entry = None if self._directory is None else await self._look_up(self._directory, kind, name)
        if entry is None or entry.identity == self._identity:
            hint = (
                "a wiring without directory= finds names of its own process alone" if self._directory is None else None
            )
            raise UnknownName(kind, name, hint=hint)
        return await self._net.connect(entry.address, _CONNECT)

    async def owner(self, kind: Kind, name: str) -> bytes | None:
        """Return the identity of a name's owner, as the directory says; None if it says none.

        Raises:
            RedpollError: The directory does not answer: the errors of `DirectoryClient.lookup`.
        """
        if self._directory is None:
            return None
        entry = await self._directory.lookup(kind, name, timeout=_LOOKUP)
        return None if entry is None else entry.identity

    async def _look_up(self, directory: DirectoryClient, kind: Kind, name: str) -> Entry | None:
        """Look a name up in the directory, once for all callers in one turn of the loop."""
        key = kind, name
        question = self._asking.get(key)
        if question is None:
            question = self._asking[key] = _Question(asyncio.create_task(self._ask(directory, kind, name)))
        self._asked[key] += 1
        question.askers += 1
        try:
            return await asyncio.shield(question.task)
        finally:
            question.askers -= 1
            if not question.askers:
                question.task.cancel()
                if self._asking.get(key) is question:
                    del self._asking[key]
            self._asked[key] -= 1
            if not self._asked[key]:
                del self._asked[key]

    async def _ask(self, directory: DirectoryClient, kind: Kind, name: str) -> Entry | None:
        await asyncio.sleep(0)
        # Later callers may know of a change after this answer.
        del self._asking[kind, name]
        return await directory.lookup(kind, name, timeout=_LOOKUP)

    def last_error(self, exchange: str, queue: str) -> RedpollError | None:
        """Return the error that keeps one of two names from being found; None if none is known."""
        directory = self._directory
        if directory is None:
            return None
        if directory.state != "up":
            last_error = directory.last_error
            return unavailable(directory.address, last_error, str(last_error or "there is no link as yet"))
        keys: tuple[tuple[Kind, str], ...] = ("exchange", exchange), ("queue", queue)
        for kind, name in keys:
            if (kind, name) in self._asked:
                if directory.settled:
                    return unavailable(directory.address, None, "it has not answered yet")
                hint = "the directory was started just now, and waits one lease for owners that come back: give it more time"
                return UnknownName(kind, name, hint=hint)
        return None

    def watch(self, kind: Kind, name: str, changed: Callable[[bytes | None], object]) -> list[Callable[[], object]]:
        """Call a function when another owner has a name, with its identity if known; return functions that end that."""
        ends: list[Callable[[], object]] = []
        if self._directory is not None:
            # First, as this may reach the limit of watches.
            watch = self._directory.watch(kind, name, lambda entry: None if entry is None else changed(entry.identity))
            ends.append(watch.cancel)
        ends.append(self._neighbour.watch(kind, name, partial(changed, None)))
        return ends


def _wildcard(host: str) -> str:
    """Return the wildcard address of the family of an IP address."""
    return "::" if ":" in host else "0.0.0.0"  # noqa: S104


class _Question:
    """A lookup at the directory, with the number of its callers."""

    __slots__ = ("askers", "task")

    def __init__(self, task: asyncio.Task[Entry | None]) -> None:
        self.task = task
        self.askers = 0
