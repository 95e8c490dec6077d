"""The directory: a node that knows who has which name. It never sees a message of an exchange."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Any, Literal, Self

from redpoll.address import Address
from redpoll.checks import seconds as seconds_problem
from redpoll.config import Config
from redpoll.errors import Closed, ConfigError, DecodeError, RedpollError, UsageError
from redpoll.node import Node, Received
from redpoll.node.door import Peer, peer_of, remote_of
from redpoll.node.reports import LogLimit
from redpoll.tls import TLS
from redpoll.wiring.directory import protocol as words
from redpoll.wiring.directory.entries import Entry, Key, key_of, place_problem, stays_here, style_of
from redpoll.wiring.directory.table import Bounds, Holder, Outcome, Seen, Table, Verdict
from redpoll.wiring.directory.tokens import is_token, token_bytes

__all__ = ["DEFAULT_LEASE", "DEFAULT_PORT", "Directory"]

DEFAULT_PORT = 5682
"""Where a directory listens unless told otherwise: the port of the server of old."""

DEFAULT_LEASE = 15.0
"""Seconds that an owner which is not heard of keeps its names."""

#: Bytes of a message: a batch of names of any length fits several times.
_MESSAGE_SIZE = 1024 * 1024

#: Bytes that a directory holds of messages, of all its clients.
_MEMORY = 256 * 1024 * 1024

#: The share of a lease in which leases end together.
_PATIENCE = 0.01

#: The shares of a lease by which its end may be seen late before the directory itself is what stood still, and that clients
#: have then to be heard: they renew it three times.
_LATE = 0.05
_HEARING = 0.4

_logger = logging.getLogger("redpoll.wiring")


class Directory:
    """Knows names of exchanges and queues, and who can be reached where; tells those who want to know.

    It keeps nothing on disk: owners hold a link to it and register again by themselves when it was started again. For its
    first lease it says of a name that nobody has that it is not known yet.

    Args:
        host: Where to listen: an IP address or name of this machine, or "unix:PATH".
        port: The port, 0 for any free one.
        entries: Names that are there from the start and never expire; what somebody registers goes before them.
        token: What clients have to show, text or bytes, 1 to 1,024 of them; None: nothing.
        lease: Seconds that an owner which is not heard of keeps its names, 0.1 to 3,600.
        tls: Certificates, as `Config.tls`.
        encryption: As `Config.encryption`: off loopback links are encrypted unless told otherwise.
        bounds: How much it holds; None: 10,000 names and as many watches of a client, 200,000 of each in all.

    Use it as an async context manager, or call `start` and `stop`. All of it belongs to the event loop it was started on.

    Raises:
        ConfigError: An option has a value that it cannot have.
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
        problem = seconds_problem(lease)
        if problem is None and not 0.1 <= lease <= 3600:
            problem = "must be 0.1 to 3600 seconds"
        if problem is not None:
            raise ConfigError("lease", lease, problem)
        self._lease = float(lease)
        self._token = token_bytes(token)
        self._static = tuple(map(_checked, entries))
        self._bounds = bounds
        self._node = _Office(
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
        self._by_holder: dict[Holder, _Client] = {}
        self._timer: asyncio.TimerHandle | None = None
        #: Whether it stood still when it should have ended leases, and hears clients first.
        self._is_hearing = False
        self._table = Table(0.0, lease=self._lease, grace=0.0, static=self._static, bounds=bounds)
        self._loop: asyncio.AbstractEventLoop
        self._strangers: LogLimit

    # Life

    async def start(self) -> None:
        """Listen.

        Raises:
            ConfigError: It cannot listen there, or its certificates cannot be used; nothing is left open.
            UsageError: It was started before.

        Cancelling it leaves nothing open.
        """
        await self._node.start()
        # Nothing was read yet.
        loop = self._loop = asyncio.get_running_loop()
        self._strangers = LogLimit(loop)
        lease = self._lease
        self._table = Table(loop.time(), lease=lease, grace=lease, static=self._static, bounds=self._bounds)
        self._arm()

    async def stop(self, drain: float | None = 1.0) -> None:
        """Stop. Clients keep their pipes, and wait for a directory at this address.

        Args:
            drain: Seconds that what was begun has to end; None is no limit.

        Stopping one that is stopped does nothing. Cancelling it ends the draining at once.
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

    # Looking

    @property
    def address(self) -> Address:
        """Where clients reach it.

        Raises:
            Closed: It is not running.
        """
        return self._node.address

    @property
    def listening(self) -> tuple[Address, ...]:
        """Where it listens; empty while it does not."""
        return self._node.listening

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The names that it knows, in order."""
        return tuple(self._table.page(None, len(self._table)))

    @property
    def clients(self) -> int:
        """How many have said hello and are linked."""
        return len(self._clients)

    # Messages

    def _arrived(self, message: Received[Any]) -> bytes | None:
        """Answer a word."""
        act = _ACTS.get(message.header)
        peer = peer_of(message)
        if act is None or not message.wanted:
            message.refuse("this is a directory, which accepts only messages of its own protocol")
            return None
        try:
            if message.header == words.HELLO:
                return self._hello(message, peer)
            client = self._clients.get(peer)
            if client is None:
                return words.say_problem("hello", "say hello first")
            answer: bytes = act(self, client, message.data)
        except DecodeError as error:
            message.refuse(error.problem)
            return None
        self._settle()
        return answer

    def _hello(self, message: Received[Any], peer: Peer) -> bytes:
        hello = words.read_hello(message.data)
        if hello.version != words.VERSION:
            return words.say_problem("version", f"this directory speaks version {words.VERSION}, not {hello.version}")
        if not is_token(hello.token, self._token):
            shown = "a wrong one" if hello.token else "none"
            if self._strangers.may_log():
                _logger.warning("turned away a client that showed no token, or a wrong one: %s", message.address)
            return words.say_problem("token", f"the directory wants a token, and was shown {shown}")
        now = self._loop.time()
        former = self._forget(peer)
        client = _Client(self._table.join(now, hello.client, hello.run), peer, message)
        self._clients[peer] = self._by_holder[client.holder] = client
        if former is not None:
            self._table.lose(now, former, back=True)
        self._settle()
        settles_at = self._table.settles_at
        settles_in = 0.0 if settles_at is None else max(settles_at - now, 0.0)
        remote = client.remote
        return words.say_welcome(words.Welcome(words.VERSION, self._lease, settles_in, client.near, remote.host))

    def _register(self, client: _Client, data: bytes) -> bytes:
        now = self._loop.time()
        return words.say_verdicts([self._verdict(now, client, item) for item in words.read_items(data)])

    def _verdict(self, now: float, client: _Client, item: words.Item) -> Verdict:
        if place_problem(item.address) is not None:
            return Verdict(Outcome.NOWHERE)
        if stays_here(item.address) and not client.near:
            return Verdict(Outcome.LOOPBACK)
        return self._table.register(now, client.holder, item.entry(client.holder.run))

    def _unregister(self, client: _Client, data: bytes) -> bytes:
        return words.say([self._table.unregister(client.holder, key) for key in words.read_keys(data)])

    def _settled(self, client: _Client, data: bytes) -> bytes:  # noqa: ARG002  # the words share one signature
        self._table.settle(client.holder)
        return words.say(None)

    def _look_up(self, client: _Client, data: bytes) -> bytes:  # noqa: ARG002
        now = self._loop.time()
        return words.say_sights([self._table.look(now, key) for key in words.read_keys(data)])

    def _watch(self, client: _Client, data: bytes) -> bytes:
        now = self._loop.time()
        table = self._table
        sights: list[Seen | None] = [
            table.look(now, key) if table.watch(client.holder, key) else None for key in words.read_keys(data)
        ]
        return words.say_sights(sights)

    def _unwatch(self, client: _Client, data: bytes) -> bytes:
        for key in words.read_keys(data):
            self._table.unwatch(client.holder, key)
        return words.say(None)

    def _renew(self, client: _Client, data: bytes) -> bytes:
        return words.say(self._table.renew(self._loop.time(), client.holder, words.read_count(data)))

    def _list(self, client: _Client, data: bytes) -> bytes:  # noqa: ARG002
        return words.say_entries(self._table.page(words.read_place(data), words.PAGE))

    def _bye(self, client: _Client, data: bytes) -> bytes:  # noqa: ARG002
        self._forget(client.peer)
        self._table.leave(client.holder)
        return words.say(None)

    # Clients

    def _gone(self, peer: Peer) -> None:
        """The link to a client is lost."""
        holder = self._forget(peer)
        if holder is not None:
            self._table.lose(self._loop.time(), holder)
            self._settle()

    def _forget(self, peer: Peer) -> Holder | None:
        """Tell a client nothing more; None: it had not said hello."""
        client = self._clients.pop(peer, None)
        if client is None:
            return None
        del self._by_holder[client.holder]
        telling, client.telling = client.telling, None
        if telling is not None:
            telling.cancel()
        return client.holder

    def _settle(self) -> None:
        """Tell who is to be told, and be woken when something expires."""
        restless = self._table.restless
        while restless:
            holder, _ = restless.popitem()
            client = self._by_holder.get(holder)
            if client is not None and client.telling is None:
                self._tell(client)
        if self._timer is None:
            self._arm()

    def _tell(self, client: _Client) -> None:
        """Send a client its news, if there are any: the next go when these have arrived."""
        holder = client.holder
        news = self._table.take_news(self._loop.time(), holder, words.BATCH)
        if not news and not holder.again:
            return
        body = words.say_news(news, again=holder.again)
        holder.again = False
        try:
            client.telling = telling = self._node.send(client.message.reply(body, header=words.NEWS), timeout=None)
        except Closed:
            return
        telling.add_done_callback(partial(self._told, client, [key for key, _ in news]))

    def _told(self, client: _Client, keys: list[Key], telling: asyncio.Future[None]) -> None:
        # Looked at also where the client is gone: else the node tells of it.
        failed = not telling.cancelled() and telling.exception() is not None
        if client.telling is not telling:
            return
        client.telling = None
        if telling.cancelled():
            return
        holder = client.holder
        if not failed:
            self._tell(client)
            return
        # If its link is lost, it is told everything when it says hello again.
        more = bool(holder.news)
        self._table.give_back(holder, keys)
        if more:
            self._tell(client)

    def _arm(self) -> None:
        deadline = self._table.deadline
        if deadline is not None and self._node.listening:
            # Many that are gone one after another are looked at together.
            self._timer = self._loop.call_at(max(deadline, self._loop.time() + self._lease * _PATIENCE), self._expire)

    def _expire(self) -> None:
        timer, self._timer = self._timer, None
        now = self._loop.time()
        if timer is not None and not self._is_hearing and now - timer.when() > self._lease * _LATE:
            # Nobody was heard while it stood still: what they said is read first.
            self._is_hearing = True
            self._timer = self._loop.call_at(now + self._lease * _HEARING, self._expire)
            return
        self._is_hearing = False
        self._table.expire(now)
        self._settle()


class _Client:
    """A client that has said hello.

    Attributes:
        holder: What the table knows it by.
        peer: What the node knows it by.
        message: Its hello; what it is told is a reply to that.
        remote: Where it is, as its link says.
        near: Whether that is on the directory's machine.
        telling: The news that are on their way to it.
    """

    __slots__ = ("holder", "message", "near", "peer", "remote", "telling")

    def __init__(self, holder: Holder, peer: Peer, message: Received[Any]) -> None:
        self.holder = holder
        self.peer = peer
        self.message = message
        self.remote = remote_of(message)
        self.near = stays_here(self.remote)
        self.telling: asyncio.Future[None] | None = None


class _Office(Node[Any]):
    """The node of a directory."""

    def __init__(self, handler: Callable[[Received[Any]], Any], gone: Callable[[Peer], None], config: Config) -> None:
        super().__init__(handler, config)
        self._gone = gone

    def _session_ended(self, peer: Peer, error: RedpollError) -> None:  # noqa: ARG002
        self._gone(peer)


_ACTS: Mapping[bytes, Any] = MappingProxyType(
    {
        words.HELLO: Directory._hello,
        words.REGISTER: Directory._register,
        words.UNREGISTER: Directory._unregister,
        words.SETTLED: Directory._settled,
        words.LOOKUP: Directory._look_up,
        words.WATCH: Directory._watch,
        words.UNWATCH: Directory._unwatch,
        words.RENEW: Directory._renew,
        words.LIST: Directory._list,
        words.BYE: Directory._bye,
    }
)


def _checked(entry: Entry) -> Entry:
    """A static entry that can be one."""
    try:
        key_of(entry.kind, entry.name)
        style_of(entry.style)
    except UsageError as error:
        raise ConfigError("entries", entry, error.text, error.hint) from error
    problem = place_problem(entry.address)
    if problem is not None:
        raise ConfigError("entries", entry, problem)
    return entry
