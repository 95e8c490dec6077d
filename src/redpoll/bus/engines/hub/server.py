"""The hub: a broker behind a node, with a store. It keeps queues and subjects for programs anywhere."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import partial
from hashlib import sha256
from typing import Any, Final

from redpoll.address import Address
from redpoll.bus.broker import Limits
from redpoll.bus.broker.broker import Broker
from redpoll.bus.broker.permissions import Permissions
from redpoll.bus.broker.queue import Consumer
from redpoll.bus.engines.hub import protocol as p
from redpoll.bus.engines.hub.authorization import authorize
from redpoll.bus.engines.hub.calls import Calls
from redpoll.bus.engines.hub.clients import Client
from redpoll.bus.engines.hub.requests import REQUESTS, Requests
from redpoll.bus.engines.hub.store import Store
from redpoll.bus.engines.hub.tokens import Tokens
from redpoll.bus.engines.hub.turns import Turns
from redpoll.config import Config
from redpoll.errors import BusError, Busy, NotAuthorized, ProtocolError, RedpollError, ShuttingDown
from redpoll.node import Received
from redpoll.node.door import LayerNode, Peer, peer_of
from redpoll.node.reports import Repeated

__all__ = ["HubServer"]

_log = logging.getLogger("redpoll.bus")

MAX_BODY: Final = 16 * 2**20
#: Characters of the name in a hello.
_NAME: Final = 255
#: Seconds between two looks at the tokens, and at who is there.
_PAUSE: Final = 0.5


class _Node(LayerNode):
    patience = p.PATIENCE
    libchirp = False

    def __init__(self, server: HubServer, config: Config) -> None:
        super().__init__(config)
        self._server = server

    def arrived(self, messages: list[Received[Any]]) -> list[Received[Any]]:
        """Take over records of a client."""
        return self._server.take(messages)

    def _session_began(self, peer: Peer, renewed: bool) -> None:  # noqa: ARG002
        # A client that was away for longer than it knows takes this for the session that it had.
        self._greet(peer)

    def _session_resumed(self, peer: Peer) -> None:
        # A client that saw the loss of its link earlier takes this for a new session.
        self._greet(peer)

    def _greet(self, peer: Peer) -> None:
        ((greeting, _),) = p.pack([[p.GREET, self._server.meet(peer)]])
        asyncio.get_running_loop().call_soon(self.post, peer, greeting)

    def _session_ended(self, peer: Peer, error: RedpollError) -> None:
        self._server.lose(peer, error)


class HubServer:
    """A hub.

    Args:
        store: Its store, open; it is closed with the hub.
        config: The options of its node.
        limits: Those of its broker.
        confirm: What a confirmed task survives: "disk", or "process" where the store has no disk.
        max_body: The largest body, in bytes.
        tokens: Those that clients have to show; None lets everybody do everything.

    Attributes:
        broker: The broker.
        node: The node.
        failed: Done when the store failed; the hub has to end then.
    """

    def __init__(
        self,
        store: Store,
        config: Config,
        limits: Limits | None = None,
        *,
        confirm: str = "disk",
        max_body: int = MAX_BODY,
        tokens: Tokens | None = None,
    ) -> None:
        self._store = store
        self._confirm = confirm
        self._max_body = max_body
        self._tokens = tokens
        self._limits = Limits() if limits is None else limits
        # Thousands of workers of one machine are normal.
        most = config.max_connections
        self.node = _Node(self, dataclasses.replace(config, resume=self._limits.grace, max_connections_per_host=most))
        self.broker: Broker
        self.failed: asyncio.Future[None]
        self._turns: Turns
        self._requests: Requests
        self._calls: Calls
        self._clients: dict[Peer, Client]
        # Linked peers without a hello, each with the time until which the hub waits for it.
        self._strangers: dict[Peer, float] = {}
        self._patience = config.handshake_timeout
        self._looking: asyncio.TimerHandle | None = None
        # A client dials again that was refused.
        self._refused, self._expelled = Repeated(_log_client), Repeated(_log_client)
        self._due = 0.0

    @property
    def address(self) -> Address:
        """The address that it listens at."""
        return self.node.address

    async def start(self) -> None:
        """Load what the store has, and listen."""
        self.failed = asyncio.get_running_loop().create_future()
        self._store.failed = self._store_failed
        self._turns = turns = Turns(self._store, self._limits)
        self.broker = turns.broker
        self._clients = turns.clients
        self._requests = Requests(turns, self._max_body)
        self._calls = Calls(turns, self._max_body)
        try:
            await self.node.start()
        except BaseException:
            turns.stop()
            raise
        self._look()

    async def close(self) -> None:
        """Put on disk what is to be there, say it, and end. What workers have stays theirs, and is not waited for."""
        if self._looking is not None:
            self._looking.cancel()
        for each in (self._refused, self._expelled):
            each.close()
        async with AsyncExitStack() as stack:
            # In the opposite order, each whatever becomes of the others.
            stack.push_async_callback(self.node.stop, 0.5)
            stack.callback(self._say_goodbye)
            stack.push_async_callback(self._store.close)
            self._turns.stop()

    @property
    def _goodbye(self) -> str:
        return "the hub ends, as its disk failed: its log says how" if self.failed.done() else "the hub is restarting"

    def _say_goodbye(self) -> None:
        for client in list(self._clients.values()):
            client.say(p.FAILED, 0, p.pack_error(BusError(self._goodbye)))
            client.flush()

    def _store_failed(self, error: BaseException) -> None:
        _log.error("the store of the hub failed, so it ends: %s", error)
        if not self.failed.done():
            self.failed.set_exception(error)
            self.failed.exception()

    # Records

    def take(self, messages: list[Received[Any]]) -> list[Received[Any]]:
        """Take over messages of one client; return those that are to be released now."""
        peer = peer_of(messages[0])
        if self._turns.stopped:
            for message in messages:
                self.node.refuse(message, ShuttingDown, self._goodbye)
            return []
        client = self._clients.get(peer)
        if client is not None and client.deferred:
            client.deferred += messages
            return []
        return self._carry_out(peer, deque(messages))

    def _reopen(self, client: Client) -> None:
        """Give tasks to a client again that half of the waiting ones were sent to."""
        if not self._turns.stopped:
            self.broker.peers.reopen(client.member)
            self._turns.end()

    def _resume(self, client: Client) -> None:
        """Continue with the messages of a client that has read enough."""
        messages, client.deferred = client.deferred, deque()
        rest, client.rest = client.rest, None
        if not self._turns.stopped:
            for message in self._carry_out(client.peer, messages, rest):
                message.release()

    def _carry_out(
        self, peer: Peer, messages: deque[Received[Any]], rest: Iterator[list[Any]] | None = None
    ) -> list[Received[Any]]:
        """Carry out the records of messages, until the client has to read; return the messages to be released now."""
        done: list[Received[Any]] = []
        try:
            while messages:
                records = iter(self._unpack(peer, messages[0])) if rest is None else rest
                rest = None
                for record in records:
                    self._record(peer, record)
                    client = self._clients.get(peer) if record[0] == p.CALL else None
                    if client is not None and client.busy:
                        client.deferred, client.rest = messages, records
                        return done
                done.append(messages.popleft())
        except NotAuthorized as error:
            self._refused.note(("refused a client", peer.address, error))
            self._dismiss(peer, error)
        except ProtocolError as error:
            self._expel(peer, error)
        finally:
            self._turns.end()
        done += messages
        client = self._clients.get(peer)
        return done if client is None else client.release(done)

    def _unpack(self, peer: Peer, message: Received[Any]) -> list[list[Any]]:
        if peer in self._clients:
            return p.unpack(message.data, p.FROM_CLIENTS)
        records = p.unpack(message.data, p.FROM_CLIENTS) if len(message.data) <= p.MAX_HELLO else []
        if records and records[0][0] in {p.HELLO, p.ALIVE, p.BEGUN}:
            return records
        # Its session is over here, and may continue there, where the loss of a link was seen later: it begins anew.
        self.node.refuse(message, Busy, "a client says hello first")
        self.node.leave(peer)
        return []

    def _record(self, peer: Peer, record: list[Any]) -> None:
        kind = record[0]
        request = REQUESTS.get(kind)
        if request is None:
            if kind == p.HELLO:
                self._hello(peer, *record[1:])
                return
            if kind == p.ALIVE:
                self._live(peer, *record[1:])
                return
            if kind == p.BEGUN:
                self._begun(*record[1:])
                return
        client = self._clients.get(peer)
        if client is None:
            raise ProtocolError("a client says hello first")
        try:
            if kind == p.CALL:
                p.check_call(record[2], record[3])
            if client.rights is not None:
                authorize(client.rights, self.broker, client.member, record)
            if request is not None:
                request(self._requests, client, *record[1:])
            elif kind == p.GOODBYE:
                self._forget(client, goodbye=True)
            else:
                self._calls.call(client, *record[1:])
        except ProtocolError:
            raise
        except RedpollError as error:
            if kind in p.ANSWERED:
                client.fail(record[1], error)
        except Exception as error:  # noqa: BLE001  # logged there
            what = record[2] if kind == p.CALL else kind
            self._turns.fail_by_defect(client, record[1] if kind in p.ANSWERED else 0, what, error)

    # Clients

    def meet(self, peer: Peer) -> bool:
        """Expect a hello from a peer that has a new link; return True if it is a known client in a resumed session."""
        known = peer in self._clients
        if not known:
            self._strangers[peer] = time.monotonic() + self._patience
        return known

    def _hello(self, peer: Peer, version: int, name: str, token: str) -> None:
        if version != p.VERSION:
            raise ProtocolError(f"this hub speaks version {p.VERSION} of the bus, not {version}")
        if len(name) > _NAME:
            raise ProtocolError(f"a client's name has {len(name)} characters: the limit is {_NAME}")
        digest, rights = (b"", None) if self._tokens is None else self._tokens.find(token)
        if rights is None and self._tokens is not None:
            raise NotAuthorized(
                "the hub does not know the token" if token else "the hub wants a token",
                hint="give a token of its file",
            )
        name = _public(name, rights)
        former = self._clients.get(peer)
        if former is not None:
            self._forget(former, goodbye=former.member.name != name)
        earlier = self.broker.peers.found.get(name)
        if earlier is not None and earlier.owner is not None:
            self._forget(earlier.owner, goodbye=False)
        member = self.broker.peers.join(name, time.monotonic())
        client = self._clients[peer] = member.owner = Client(
            self.node, peer, member, rights, digest, self._resume, self._reopen
        )
        self._strangers.pop(peer, None)
        client.say(p.WELCOME, p.VERSION, self._store.name, self._store.epoch, self._confirm, self._max_body)

    def _live(self, peer: Peer, name: str, token: str) -> None:
        """Take a sign of life of a client; one of no client, or with another token, is passed over."""
        client = self._find(name, token)
        if client is not None:
            self.node.heard(client.peer)
            client.life = peer, name
            self._strangers.pop(peer, None)

    def _begun(self, name: str, token: str, question: int, begun: list[Any]) -> None:
        """Take the answer of a process whose loop is blocked: what was begun; no other task is."""
        client = self._find(name, token)
        if client is None or not question or question != client.question:
            return
        pairs: list[tuple[Consumer, int]] = []
        for each in begun:
            match each:
                case [int() as number, int() as last]:
                    if number in client.consumers:
                        pairs.append((client.consumers[number], last))
                case _:
                    raise ProtocolError("expected numbers of consumers, each with a token")
        self.broker.peers.stall(client.member, pairs, time.monotonic())

    def _find(self, name: str, token: str) -> Client | None:
        digest, rights = (b"", None) if self._tokens is None else self._tokens.find(token)
        member = self.broker.peers.found.get(_public(name, rights))
        client: Client | None = None if member is None else member.owner
        return client if client is not None and client.token == digest else None

    def lose(self, peer: Peer, error: RedpollError) -> None:
        """Handle the end of a client's session, without goodbye if the client is still known."""
        self._strangers.pop(peer, None)
        client = self._clients.get(peer)
        if client is not None and not self._turns.stopped:
            _log.debug("lost the client %s: %s", client.member.name, error)
            self._forget(client, goodbye=False)
            self._turns.end()

    def _forget(self, client: Client, *, goodbye: bool) -> None:
        self._clients.pop(client.peer, None)
        client.end()
        now = time.monotonic()
        self.broker.intake.unpark(client.parked.values(), now)
        client.parked.clear()
        if client.member.owner is client:
            self.broker.peers.leave(client.member, now, goodbye=goodbye)
            client.member.owner = None
        self._turns.look_for_observers()

    def _look(self) -> None:
        """Disconnect peers without a hello, and clients whose token was removed or changed; ask blocked ones what they do.

        Called twice a second.
        """
        self._looking = asyncio.get_running_loop().call_later(_PAUSE, self._look)
        now = time.monotonic()
        for peer in [each for each, end in self._strangers.items() if end <= now]:
            del self._strangers[peer]
            self.node.cut(peer, ProtocolError("it did not say hello"))
        if now - self._due < _PAUSE / 2:
            # A later look shows that this loop was blocked, and may have to read that they took something over.
            for client in self._clients.values():
                client.look(now)
        self._due = now + _PAUSE
        if self._tokens is not None and self._tokens.renew():
            for client in list(self._clients.values()):
                rights = self._tokens.allowed(client.token)
                if rights != client.rights:
                    # It says hello again, and what it had is looked at again; without a token it cannot.
                    self._forget(client, goodbye=rights is None)
                    self._dismiss(client.peer, NotAuthorized("its token allows something else now"))
            self._turns.end()

    def _dismiss(self, peer: Peer, error: RedpollError) -> None:
        """Report to a peer that it is not known, and close its link; it may dial again."""
        self.meet(peer)
        ((body, _),) = p.pack([[p.FAILED, 0, p.pack_error(error)]])
        cut = partial(asyncio.get_running_loop().call_soon, self.node.cut, peer, error)
        self.node.post(peer, body, lambda _: cut())

    def _expel(self, peer: Peer, error: ProtocolError) -> None:
        self._expelled.note(("closed the link of a client that violated the protocol", peer.address, error))
        client = self._clients.get(peer)
        if client is not None:
            self._forget(client, goodbye=False)
        self._dismiss(peer, error)


def _log_client(count: int, last: tuple[str, Address | None, RedpollError]) -> None:
    times = "" if count == 1 else f" ({count:,} times since the last warning)"
    what, address, error = last
    _log.warning("%s%s: %s: %s", what, times, address, error)


def _public(name: str, rights: Permissions | None) -> str:
    """Return what others may see of a client, in the histories of its tasks: it does not tell the name in its hello.

    No client takes the place of one of another identity, whose name is in front; it has no colon.
    """
    digest = sha256(name.encode(errors="surrogatepass")).hexdigest()[:32]
    return digest if rights is None else f"{rights.name}:{digest}"
