"""The directory: a node that maps names to their owners. It never sees a message of an exchange."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Any, Literal, Self

from redpoll.address import Address
from redpoll.checks import require, seconds
from redpoll.config import Config
from redpoll.errors import Closed, ConfigError, DecodeError, RedpollError, UsageError
from redpoll.node import Received
from redpoll.node.door import Peer, peer_of, remote_of
from redpoll.node.reports import LogLimit
from redpoll.tls import TLS
from redpoll.wiring.directory import protocol
from redpoll.wiring.directory.entries import Entry, Key, key_of, place_problem, stays_here, style_of
from redpoll.wiring.directory.session import Endpoint
from redpoll.wiring.directory.table import Bounds, Holder, LookupResult, Outcome, RegistrationResult, Table
from redpoll.wiring.directory.tokens import is_token, token_bytes

__all__ = ["DEFAULT_LEASE", "DEFAULT_PORT", "Directory"]

DEFAULT_PORT = 5682
"""Default port of a directory: that of the first ØMQ extension's server."""

DEFAULT_LEASE = 15.0
"""Seconds for which a silent owner keeps its names."""

#: Maximum size of a message, in bytes: several times that of a batch of the longest names.
_MESSAGE_SIZE = 1024 * 1024

#: Maximum bytes of messages that a directory holds, of all its clients.
_MEMORY = 256 * 1024 * 1024

#: Leases that expire within this share of a lease end together.
_PATIENCE = 0.01

#: If expiry fires later than this share of a lease, assume that the loop stalled, and wait for renewals: for the second
#: share, as clients renew three times per lease.
_LATE = 0.05
_HEARING = 0.4

_logger = logging.getLogger("redpoll.wiring")


class Directory:
    """Maps names of exchanges and queues to their owners' addresses, and notifies clients that watch a name.

    It keeps nothing on disk: owners hold a link to it, and register again by themselves when it was restarted. During its
    first lease it answers that the owner of an unregistered name is not known yet.

    Args:
        host: The address to listen at: an IP address or name of this machine, or "unix:PATH".
        port: The port, 0 for any free one.
        entries: Static names, which never expire; a registration takes precedence.
        token: The secret that clients must present, text or bytes, 1 to 1,024 of them; None for none.
        lease: Seconds for which a silent owner keeps its names, 0.1 to 3,600.
        tls: Certificates, as `Config.tls`.
        encryption: As `Config.encryption`: by default links are encrypted off loopback.
        bounds: Its limits; None: 10,000 names and as many watches of a client, 200,000 of each in all.

    Use it as an async context manager, or call `start` and `stop`. Call all methods on the event loop on which it was
    started.

    Raises:
        ConfigError: An option has an invalid value.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        *,
        entries: Iterable[Entry] = (),
        token: str | bytes | None = None,
        lease: float = DEFAULT_LEASE,
        tls: TLS | tuple[ssl.SSLContext, ssl.SSLContext] | None = None,
        encryption: bool | Literal["auto"] = "auto",
        bounds: Bounds | None = None,
    ) -> None:
        require("lease", lease, seconds)
        if not 0.1 <= lease <= 3600:
            raise ConfigError("lease", lease, "must be 0.1 to 3600 seconds")
        self._lease = float(lease)
        self._token = token_bytes(token)
        self._static = tuple(map(_checked, entries))
        self._bounds = bounds
        self._node = Endpoint(
            self._arrived,
            self._gone,
            Config(
                host=host,
                port=port,
                tls=tls,
                encryption=encryption,
                timeout=self._lease,
                keepalive=min(5.0, self._lease / 3),
                max_message_size=_MESSAGE_SIZE,
                memory_limit=_MEMORY,
            ),
        )
        self._clients: dict[Peer, _Client] = {}
        self._timer: asyncio.TimerHandle | None = None
        #: True while it waits for renewals after a stall, before it ends leases.
        self._is_hearing = False
        self._table = Table(0.0, lease=self._lease, grace=0.0, static=self._static, bounds=bounds)
        self._loop: asyncio.AbstractEventLoop
        self._rejected: LogLimit

    # Start and stop

    async def start(self) -> None:
        """Start to listen.

        Raises:
            ConfigError: It cannot listen there, or its certificates cannot be used; nothing is left open.
            UsageError: It was started before.

        Cancelling it leaves nothing open.
        """
        await self._node.start()
        # No message was read yet.
        loop = self._loop = asyncio.get_running_loop()
        self._rejected = LogLimit(loop)
        lease = self._lease
        self._table = Table(loop.time(), lease=lease, grace=lease, static=self._static, bounds=self._bounds)
        self._arm()

    async def stop(self, drain: float | None = 1.0) -> None:
        """Stop. Clients keep their pipes, and wait for a directory at this address.

        Args:
            drain: Seconds for requests in progress to end; None is no limit.

        A second call does nothing. Cancelling it ends the draining at once.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._node.stop(drain)

    async def serve_forever(self) -> None:
        """Wait until it is stopped. Cancelling it does not stop it."""
        await self._node.serve_forever()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    # State

    @property
    def address(self) -> Address:
        """The address at which clients reach it.

        Raises:
            Closed: It is not running.
        """
        return self._node.address

    @property
    def listening(self) -> tuple[Address, ...]:
        """The addresses at which it listens; empty while it does not."""
        return self._node.listening

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The names that it knows, in order."""
        return tuple(self._table.page(None, len(self._table)))

    @property
    def clients(self) -> int:
        """Number of clients that have said hello and are linked."""
        return len(self._clients)

    # Messages

    def _arrived(self, message: Received[Any]) -> bytes | None:
        """Answer a word."""
        word, act = _ACTS.get(message.header, (protocol.HELLO, None))
        peer = peer_of(message)
        if act is None or not message.wanted:
            message.refuse("this is a directory, which accepts only messages of its own protocol")
            return None
        client = self._clients.get(peer)
        if client is None and word is not protocol.HELLO:
            return protocol.say_problem("hello", "say hello first")
        try:
            value = word.read(message.data)
        except DecodeError as error:
            message.refuse(error.problem)
            return None
        if word is protocol.HELLO:
            return self._hello(message, peer, value)
        answer: bytes = word.reply(act(self, client, value))
        self._settle()
        return answer

    def _hello(self, message: Received[Any], peer: Peer, hello: protocol.Hello) -> bytes:
        if hello.version != protocol.VERSION:
            return protocol.say_problem(
                "version", f"this directory speaks version {protocol.VERSION}, not {hello.version}"
            )
        if not is_token(hello.token, self._token):
            shown = "a wrong one" if hello.token else "none"
            if self._rejected.may_log():
                _logger.warning("turned away a client that showed no token, or a wrong one: %s", message.address)
            return protocol.say_problem("token", f"the directory wants a token, and was shown {shown}")
        now = self._loop.time()
        former = self._forget(peer)
        client = self._clients[peer] = _Client(hello, peer, message)
        self._table.join(now, client)
        if former is not None:
            self._table.lose(now, former, back=True)
        self._settle()
        settles_at = self._table.settles_at
        settles_in = 0.0 if settles_at is None else max(settles_at - now, 0.0)
        return protocol.HELLO.reply(
            protocol.Welcome(protocol.VERSION, self._lease, settles_in, client.near, client.remote.host)
        )

    def _register(self, client: _Client, entries: list[Entry]) -> list[RegistrationResult]:
        return [self._register_one(client, entry) for entry in entries]

    def _register_one(self, client: _Client, entry: Entry) -> RegistrationResult:
        if place_problem(entry.address) is not None:
            return RegistrationResult(Outcome.NOWHERE)
        if stays_here(entry.address) and not client.near:
            return RegistrationResult(Outcome.LOOPBACK)
        return self._table.register(self._loop.time(), client, replace(entry, run=client.run))

    def _unregister(self, client: _Client, keys: list[Key]) -> list[bool]:
        return [self._table.unregister(client, key) for key in keys]

    def _settled(self, client: _Client, _: None) -> None:
        self._table.settle(client)

    def _look_up(self, _: _Client, keys: list[Key]) -> list[LookupResult]:
        return [self._table.look(self._loop.time(), key) for key in keys]

    def _watch(self, client: _Client, keys: list[Key]) -> list[LookupResult | None]:
        now, table = self._loop.time(), self._table
        return [table.look(now, key) if table.watch(client, key) else None for key in keys]

    def _unwatch(self, client: _Client, keys: list[Key]) -> None:
        for key in keys:
            self._table.unwatch(client, key)

    def _renew(self, client: _Client, count: int | None) -> bool:
        return self._table.renew(self._loop.time(), client, count)

    def _list(self, _: _Client, after: Key | None) -> list[Entry]:
        return self._table.page(after, protocol.PAGE)

    def _bye(self, client: _Client, _: None) -> None:
        self._forget(client.peer)
        self._table.leave(client)

    # Clients

    def _gone(self, peer: Peer, _: RedpollError) -> None:
        """Handle the loss of a client's link."""
        holder = self._forget(peer)
        if holder is not None:
            self._table.lose(self._loop.time(), holder)
            self._settle()

    def _forget(self, peer: Peer) -> _Client | None:
        """Forget the link of a client, and return it; None if it had not said hello."""
        client = self._clients.pop(peer, None)
        if client is None:
            return None
        telling, client.telling = client.telling, None
        if telling is not None:
            telling.cancel()
        return client

    def _settle(self) -> None:
        """Send news to clients that have any, and set the timer for the next expiry."""
        restless = self._table.restless
        while restless:
            holder, _ = restless.popitem()
            if isinstance(holder, _Client) and holder.telling is None and self._clients.get(holder.peer) is holder:
                self._tell(holder)
        if self._timer is None:
            self._arm()

    def _tell(self, client: _Client) -> None:
        """Send a client its news, if there are any; the next are sent when these have arrived."""
        news = self._table.take_news(self._loop.time(), client, protocol.BATCH)
        if not news and not client.again:
            return
        body = protocol.NEWS.say(protocol.News(client.again, news))
        client.again = False
        try:
            client.telling = telling = self._node.send(
                client.message.reply(body, header=protocol.NEWS.header), timeout=None
            )
        except Closed:
            return
        telling.add_done_callback(partial(self._told, client, [key for key, _ in news]))

    def _told(self, client: _Client, keys: list[Key], telling: asyncio.Future[None]) -> None:
        # Retrieved also if the client is gone: otherwise the node reports it.
        failed = not telling.cancelled() and telling.exception() is not None
        if client.telling is not telling:
            return
        client.telling = None
        if telling.cancelled():
            return
        if not failed:
            self._tell(client)
            return
        # If its link is lost, it is told everything when it says hello again.
        more = bool(client.news)
        self._table.give_back(client, keys)
        if more:
            self._tell(client)

    def _arm(self) -> None:
        deadline = self._table.deadline
        if deadline is not None and self._node.listening:
            # Owners that were lost one after another are handled together.
            self._timer = self._loop.call_at(max(deadline, self._loop.time() + self._lease * _PATIENCE), self._expire)

    def _expire(self) -> None:
        timer, self._timer = self._timer, None
        now = self._loop.time()
        if timer is not None and not self._is_hearing and now - timer.when() > self._lease * _LATE:
            # No renewals were read during the stall: they are read first.
            self._is_hearing = True
            self._timer = self._loop.call_at(now + self._lease * _HEARING, self._expire)
            return
        self._is_hearing = False
        self._table.expire(now)
        self._settle()


class _Client(Holder):
    """A client that has said hello.

    Attributes:
        peer: Its peer at the node.
        message: Its hello; news are sent as replies to it.
        remote: Its address, as its link says.
        near: True if that is on the directory's machine.
        telling: The sending of news in progress.
    """

    __slots__ = ("message", "near", "peer", "remote", "telling")

    def __init__(self, hello: protocol.Hello, peer: Peer, message: Received[Any]) -> None:
        super().__init__(hello.client, hello.run)
        self.peer = peer
        self.message = message
        self.remote = remote_of(message)
        self.near = stays_here(self.remote)
        self.telling: asyncio.Future[None] | None = None


_ACTS: Mapping[bytes, tuple[protocol.Word, Any]] = MappingProxyType(
    {
        word.header: (word, act)
        for word, act in (
            (protocol.HELLO, Directory._hello),
            (protocol.REGISTER, Directory._register),
            (protocol.UNREGISTER, Directory._unregister),
            (protocol.SETTLED, Directory._settled),
            (protocol.LOOKUP, Directory._look_up),
            (protocol.WATCH, Directory._watch),
            (protocol.UNWATCH, Directory._unwatch),
            (protocol.RENEW, Directory._renew),
            (protocol.LIST, Directory._list),
            (protocol.BYE, Directory._bye),
        )
    }
)


def _checked(entry: Entry) -> Entry:
    """Return a static entry, validated."""
    try:
        key_of(entry.kind, entry.name)
        style_of(entry.style)
    except UsageError as error:
        raise ConfigError("entries", entry, error.text, error.hint) from error
    problem = place_problem(entry.address)
    if problem is not None:
        raise ConfigError("entries", entry, problem)
    return entry
