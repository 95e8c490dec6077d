"""Connections to other processes, and the node that carries them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from redpoll.address import Address
from redpoll.config import Config
from redpoll.errors import (
    ConfigError,
    LinkError,
    NotAuthorized,
    PeerLost,
    ProtocolError,
    RedpollError,
    Refused,
    SendError,
    WiringError,
)
from redpoll.message import Message
from redpoll.node import Node, Received
from redpoll.node.door import (
    MESSAGE_UNIT,
    PIECE_FIELDS,
    LayerNode,
    Peer,
    Piece,
    ask,
    has_key_of,
    host_of,
    is_linked,
    peer_of,
    remote_of,
)
from redpoll.node.hooks import PeerInfo
from redpoll.node.reports import LogLimit
from redpoll.serializers.base import Buffer
from redpoll.serializers.parts import Encoded
from redpoll.wiring.board import Board
from redpoll.wiring.connection import NO_MESSAGES, Answer, Connection, Pipe
from redpoll.wiring.directory.session import Session
from redpoll.wiring.directory.tokens import is_proof, proof_of
from redpoll.wiring.exchange import IDLE
from redpoll.wiring.protocol import (
    CREDIT,
    DATA,
    MAX_WORD,
    MIXED,
    VERSION,
    WORD,
    Batch,
    check_answer,
    decode,
    encode,
    field,
    refusal,
    unpack,
)

__all__ = ["Net", "NetConnection", "config_of", "greet"]

_logger = logging.getLogger("redpoll.wiring")

_DATA = DATA.size
_CREDIT = CREDIT.size
_D = ord("D")
_C = ord("C")

#: Windows of the node: pipes have their own limits, and received data is taken at once.
_WINDOW = 65_535
_WINDOW_BYTES = 64 * 1024 * 1024

#: Maximum size in bytes of a message that is joined with its header.
_TOGETHER = 16 * 1024

_GIVE_TOKEN = "give both the token of their directory"  # noqa: S105  # no token

_NO_PIPE = "the other end no longer has the pipe"

#: Maximum unknown pipes per connection that the other end is told of.
MAX_STRAYS = 1024

#: Seconds for the other end of a connection to show that it is alive.
_LIFE_SIGN = 1.0

_YEAR = 31_536_000.0
_U32 = 2**32 - 1


def config_of(config: Config, options: dict[str, Any]) -> Config:
    """Return the options of the node below a wiring.

    Args:
        config: The application's options.
        options: Options that the wiring's own arguments set.
    """
    return config.replace(
        **options,
        slots=_WINDOW,
        node_slots=_U32,
        window=_WINDOW,
        window_bytes=_WINDOW_BYTES,
        auto_release=True,
        timeout=None,
        connect_timeout=config.effective_connect_timeout,
        reuse_time=_YEAR,
        in_order=True,
        acknowledge=False,
        serializer="raw",
        send_queue_limit=_U32,
        send_queue_bytes=2**63 - 1,
        # Small messages are sent together, and names to the directory, whatever the limit of one; the limit announced to
        # the other end is rounded down.
        max_message_size=min(max(config.max_message_size, MAX_WORD) + MESSAGE_UNIT + DATA.size, 2**63 - 1),
    )


class _Piece(Piece):
    """A piece that is not acknowledged: the numbers of pipes replace acknowledgements."""

    __slots__ = (*PIECE_FIELDS, "net")

    net: Net

    def settle(self, answer: Any, error: BaseException | None) -> None:  # noqa: ARG002  # Piece's
        """Handle the end: the piece is with the transport, or lost."""
        self.body = b""
        if error is not None:
            self.net.piece_lost(self.peer)


class NetConnection(Connection):
    """Connection to a wiring of another process, over the links of two nodes."""

    def __init__(self, net: Net, peer: Peer, run: bytes) -> None:
        super().__init__(net.board, peer.identity or b"", run)
        self._net = net
        self.peer = peer
        #: Host of its links; kept when they are lost.
        self.host = host_of(peer)
        self.confirmed = False
        #: Numbers of unknown pipes that the other end was told of.
        self.strays: set[int] = set()

    def confirm(self) -> None:
        """Note that the other end has it."""
        if not self.confirmed:
            self.confirmed = True
            self.tell_ended()

    @property
    def place(self) -> str:
        """The address of its node."""
        return str(self.peer.address)

    def leads_where(self, other: Connection, *, any_run: bool = False) -> bool:
        """Return True if both lead to the same wiring.

        Without a token or certificates, identity and run are claims, which are believed from the same host only.
        """
        if not isinstance(other, NetConnection) or not super().leads_where(other, any_run=any_run):
            return False
        if self._net.has_token:
            return True
        same_key = has_key_of(self.peer, other.peer)
        return (self.host is not None and self.host == other.host) if same_key is None else same_key

    async def is_rival_of(self, holder: Connection) -> bool:
        """Return True if it claims the identity of `holder` and does not prove it.

        A token or certificate proves it, another certificate refutes it; else the other end of `holder` is asked.

        If that does not answer, its link may be dead but not closed yet, and its owner has restarted.
        """
        if self._net.has_token or not holder.up:
            return False
        if not isinstance(holder, NetConnection):
            # The holder is in this process, or is this wiring.
            return True
        same_key = has_key_of(self.peer, holder.peer)
        return await holder.answers() if same_key is None else not same_key

    async def answers(self) -> bool:
        """Return True if the other end answers within `_LIFE_SIGN` seconds."""
        try:
            await self._net.ask(self.peer, _hello(self._net.board.run), _LIFE_SIGN)
        except LinkError:
            return False
        except RedpollError:
            pass  # a refusal is an answer
        return self.up

    async def check_pipe(self, number: int | None, timeout: float | None = _LIFE_SIGN) -> None:
        """Ask the other end for a pipe from there; treat the connection as lost if it says that none of its own carries that.

        A node that finds another node at an address ends its session with the former one, which may be the same.

        Args:
            number: The number of the pipe; None asks whether the other end has a connection at all.
            timeout: Seconds for the answer; None is no limit.
        """
        try:
            carried = (await self.request({"word": "carries", "pipe": number}, timeout)).get("carried")
        except RedpollError:
            return  # it may be busy, or not know the word
        if carried is False and self.up:
            self.give_up(PeerLost(self.place, _NO_PIPE))

    def give_up(self, error: RedpollError) -> None:
        """Treat it as lost, for the node as well."""
        self._net.gone(self, error, final=False)

    @property
    def writable(self) -> bool:
        """True if the link takes more data at once."""
        return self._net.node.room(self.peer) > 0

    def call_writable(self) -> None:
        """Call `pump` when the link takes more data."""
        self._net.node.when_room(self.peer, self._writable)

    def _writable(self) -> None:
        if self.up:
            self.pump()

    def send_data(self, pipe: Pipe, first: int, batch: Batch = NO_MESSAGES) -> None:
        """Pack the messages and send them."""
        shape, body = batch.packed()
        header = DATA.pack(b"D", pipe.number, first, pipe.promised, len(batch.messages), shape)
        self._net.submit(self.peer, header, body)

    def send_credit(self, number: int, taken: int) -> None:
        """Send a credit."""
        self._net.submit(self.peer, CREDIT.pack(b"C", number, taken), b"")

    def tell(self, word: dict[str, Any]) -> None:
        """Send a word without waiting for an answer."""
        self._net.submit(self.peer, WORD, encode(word))

    async def ask(self, word: dict[str, Any], timeout: float | None) -> Answer:
        """Send a word and wait for the answer."""
        return await self._net.ask(self.peer, word, timeout)


class _NetNode(LayerNode):
    def __init__(self, net: Net, config: Config) -> None:
        super().__init__(config)
        self._net = net

    def arrived(self, messages: list[Received[bytes]]) -> list[Received[bytes]]:
        return self._net.arrived(messages)

    def _session_began(self, peer: Peer, renewed: bool) -> None:
        self._net.began(peer, renewed)

    def _session_resumed(self, peer: Peer) -> None:
        self._net.resumed(peer)

    def _session_ended(self, peer: Peer, error: RedpollError) -> None:
        self._net.ended(peer, error)


class Net:
    """The node of one wiring, and its connections.

    Args:
        config: The options of the node, made by `config_of`.
        token: The token that other wirings must have; None for none.

    Attributes:
        node: The node.
        board: The exchanges and queues of the wiring.
        directory: The session with the directory, over the same node; None without one.
        has_token: True if other wirings must present a token.
    """

    board: Board
    directory: Session | None = None

    def __init__(self, config: Config, token: bytes | None) -> None:
        self._config = config
        self._token = token
        self.has_token = token is not None
        self.node = _NetNode(self, config)
        self.connections: dict[Peer, NetConnection] = {}
        self._acknowledge = config.resume is not None
        #: Time of the last submission to the node, on the loop's clock.
        self._submitted = 0.0
        self._dialling: dict[Address, asyncio.Task[NetConnection]] = {}
        #: Peers whose connection was lost here, while they may have kept theirs.
        self._lost: WeakSet[Peer] = WeakSet()
        #: For each peer, the task that asked last whether it still has the connection.
        self._checks: WeakKeyDictionary[Peer, asyncio.Task[None]] = WeakKeyDictionary()

    async def start(self) -> None:
        """Listen.

        Raises:
            ConfigError: The node cannot listen.
        """
        loop = asyncio.get_running_loop()
        self._time = loop.time
        self._lines = LogLimit(loop)
        self.node.events.peer_lost = self._link_lost
        await self.node.start()

    async def stop(self, drain: float | None) -> None:
        """Stop the node."""
        tasks = list(self._dialling.values())
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            await self.node.stop(drain)

    # Out

    def submit(self, peer: Peer, header: bytes, body: Encoded, *, first: bool = False) -> None:
        """Send a piece to a peer, behind all earlier ones; or, with `first`, ahead of those that wait for a link."""
        piece = _Piece()
        piece.net = self
        size = len(body)
        if size <= _TOGETHER and header != WORD:
            # Without a header a message is read together with others.
            body = header + body  # type: ignore[operator]  # bodies in parts are larger
            header = b""
        piece.load(header, body, acknowledge=self._acknowledge)
        now = self._time()
        self.node.submit(peer, piece, first=first, at_once=now - self._submitted > IDLE or size > _TOGETHER)
        self._submitted = now

    async def ask(self, peer: Peer, word: dict[str, Any], timeout: float | None) -> Answer:
        """Send a word and wait for the answer.

        Raises:
            LinkError: No answer arrived.
            WiringError: The other end refuses the word.
        """
        try:
            answer = await ask(self.node, peer, encode(word), header=WORD, timeout=timeout)
        except SendError as error:
            raise _lost(peer.address, error) from error
        return decode(answer.data)

    async def connect(self, address: Address, timeout: float) -> NetConnection:
        """Return the connection to the wiring at an address; dial it if there is none.

        Raises:
            LinkError: The address cannot be reached, or does not answer.
            WiringError: The node there is no wiring.
        """
        task = self._dialling.get(address)
        if task is None:
            task = self._dialling[address] = self.board.loop.create_task(self._connect(address, timeout))
            task.add_done_callback(partial(self._dialled, address))
        return await asyncio.shield(task)

    def _dialled(self, address: Address, task: asyncio.Task[NetConnection]) -> None:
        self._dialling.pop(address, None)
        if not task.cancelled():
            # Waiting callers may have gone.
            task.exception()

    async def _connect(self, address: Address, timeout: float) -> NetConnection:
        try:
            peer, word = await greet(self.node, address, self.board.run, self._token, timeout)
        except SendError as error:
            raise _lost(address, error) from error
        connection = self._met(peer, word)
        if connection is None:
            raise PeerLost(address, "it is gone")
        connection.confirm()
        return connection

    def _greeted(self, peer: Peer, word: dict[str, Any]) -> dict[str, Any]:
        """Answer the hello of another wiring."""
        answer = _hello(self.board.run)
        token = self._token
        if token is None:
            self._met(peer, word)
            return answer
        if "proof" not in word:
            # The answer reveals the input of the proof, and nothing else.
            return answer | {"token": True}
        own, other = self.node.identity, peer.identity or b""
        if not is_proof(word["proof"], token, other, own, self.board.run):
            return refusal(NotAuthorized("the tokens differ"))
        self._met(peer, word)
        return answer | {"proof": proof_of(token, own, other, field(word, "run", bytes))}

    def _met(self, peer: Peer, word: dict[str, Any]) -> NetConnection | None:
        """Return the connection for a wiring that said hello; None if its link is lost."""
        if field(word, "version", int) != VERSION:
            raise ProtocolError(f"it speaks version {word['version']} of wiring, and this end {VERSION}")
        run = field(word, "run", bytes)
        if not is_linked(peer):
            return None
        connection = self.connections.get(peer)
        if connection is not None and connection.run != run:
            connection.lose(PeerLost(peer.address, "its wiring was started again"), final=False)
            connection = None
        if connection is None:
            connection = self.connections[peer] = NetConnection(self, peer, run)
            self._lost.discard(peer)
        return connection

    # In

    def arrived(self, messages: list[Received[bytes]]) -> list[Received[bytes]]:
        """Process messages of one peer; return those of pipes, which are done: words are answered one by one."""
        peer = peer_of(messages[0])
        done: list[Received[bytes]] = []
        for message in messages:
            try:
                if self._is_of_a_pipe(self.connections.get(peer), message):
                    done.append(message)
            except ProtocolError as error:
                self._refuse_word(message, error)
            except Exception as error:  # noqa: BLE001  # a defective message does not concern the others
                self.node.failed(message, error)
        return done

    def _refuse_word(self, message: Received[bytes], error: ProtocolError) -> None:
        """Refuse a malformed word, with a warning at most once a second."""
        message.refuse(str(error))
        if self._lines.may_log():
            _logger.warning("refused a message from %s (%s): %s", message.address, remote_of(message), error)

    def _is_of_a_pipe(self, connection: NetConnection | None, message: Received[bytes]) -> bool:
        header, body = message.header, message.data
        if header == WORD:
            answer = self._word(connection, message)
            if not message.ended:
                self.node.conclude(message, answer)
            return False
        start = header or body
        if connection is not None and len(start) >= _CREDIT:
            if start[0] == _D and len(start) >= _DATA and len(header) in {0, _DATA}:
                _, number, first, said, count, shape = DATA.unpack_from(start)
                messages = body if header else memoryview(body)[_DATA:]
                self._data(connection, number, first, said, count, shape, messages)
                return True
            if start[0] == _C and len(start) == _CREDIT:
                _, number, taken = CREDIT.unpack(start)
                connection.carrier_of(number).credit(number, taken)
                return True
        if self.directory is not None and self.directory.arrived(message):
            return not message.ended
        message.refuse("this is a wiring")
        return False

    def _data(
        self, connection: NetConnection, number: int, first: int, said: int, count: int, shape: int, body: Buffer
    ) -> None:
        pipe = connection.incoming.get(number)
        if pipe is None:
            pipe = next((each.incoming[number] for each in connection.same if number in each.incoming), None)
        if pipe is None:
            if number not in connection.strays and len(connection.strays) < MAX_STRAYS:
                # The other end reopens the pipe, and counts what is lost.
                connection.strays.add(number)
                connection.tell({"word": "stray", "pipe": number})
            return
        if not count:
            pipe.arrived(first, said, [], 0)
        else:
            size = len(body)
            pipe.arrived(first, said, unpack(shape, count, body), size - 4 * count if shape == MIXED else size)

    def piece_lost(self, peer: Peer) -> None:
        """Mark the connection of a peer as failed, as a piece was lost and is not resent. Called by the core."""
        connection = self.connections.get(peer)
        if connection is not None:
            self.board.loop.call_soon(self._connection_failed, connection)

    def _connection_failed(self, connection: NetConnection) -> None:
        peer = connection.peer
        if self.connections.get(peer) is not connection:
            return
        self.gone(connection, PeerLost(peer.address, "what was sent to it is lost"), final=False)
        # Also if it is told now: that may be lost with the link.
        self._lost.add(peer)
        if is_linked(peer):
            self.submit(peer, WORD, encode({"word": "lost"}), first=True)

    def _word(self, connection: NetConnection | None, message: Received[bytes]) -> Any:
        word = decode(message.data)
        name = field(word, "word", str)
        if name == "hello":
            return encode(self._greeted(peer_of(message), word))
        if name == "describe" and (connection is not None or self._token is None):
            # Without the token, only names that are visible anyway are described.
            return encode(self.board.describe(everything=self._token is not None))
        if connection is None:
            if name == "carries":
                return encode({"carried": False})
            if name not in {"lost", "stray", "bye", "unwired"}:
                message.refuse("say hello first")
            return None
        if name == "lost":
            # The other end means an earlier one: it is not known to have this one.
            if connection.confirmed:
                self.gone(connection, PeerLost(connection.peer.address, "its session was over there"), final=False)
            return None
        connection.confirm()
        if name == "stray":
            number = field(word, "pipe", int)
            for each in connection.same:
                if number in each.pipes and each.pipes[number].connection is each:
                    each.give_up(PeerLost(each.place, _NO_PIPE))
        elif name == "bye":
            taken = word.get("taken")
            connection.took(taken if isinstance(taken, list | tuple) else ())
            self.gone(connection, PeerLost(connection.peer.address, "it was closed"), final=True)
        else:
            answer = connection.said(word)
            return encode(answer) if isinstance(answer, dict) else _encoded(answer)
        return None

    def began(self, peer: Peer, renewed: bool) -> None:
        """Handle a new link of a peer: tell it that its connection was lost here, as its own session may have survived."""
        if renewed:
            self.ended(peer, PeerLost(peer.address, "its node was started again"))
            self._lost.discard(peer)
        elif peer in self._lost:
            # Before a waiting hello, which begins a new connection.
            self.submit(peer, WORD, encode({"word": "lost"}), first=True)

    def resumed(self, peer: Peer) -> None:
        """Handle a new link of a peer in a session that was kept: the other end may have lost it, and see another peer."""
        self.began(peer, renewed=False)
        # Later: the node is in the middle of its work.
        self.board.loop.call_soon(self._check, peer)

    def _check(self, peer: Peer) -> None:
        """Ask a peer whether it still has its connection, in place of what it was asked before and has not answered."""
        connection = self.connections.get(peer)
        if connection is None or not connection.confirmed or self.board.closed:
            return
        former = self._checks.get(peer)
        if former is not None:
            former.cancel()
        task = self._checks[peer] = asyncio.Task(connection.check_pipe(None, None), loop=self.board.loop)
        self.board.tasks.add(task)
        task.add_done_callback(self.board.tasks.discard)

    def ended(self, peer: Peer, error: RedpollError) -> None:
        """Handle the end of a peer's session."""
        if self.directory is not None:
            self.directory.ended(peer, error)
        connection = self.connections.get(peer)
        if connection is not None:
            self._lost.add(peer)
            self.gone(connection, error, final=False)

    def _link_lost(self, peer: PeerInfo, error: RedpollError) -> None:
        """Handle the loss of a peer's link: the directory is asked anew, also where the node's session continues."""
        if peer.resuming and self.directory is not None:
            self.directory.unlinked(peer.identity, error)

    def gone(self, connection: NetConnection, error: RedpollError, *, final: bool) -> None:
        """Handle the loss of a connection.

        The other end may still have it, or have another one for both: it is told that what it requested is lost.
        """
        if self.connections.get(connection.peer) is connection:
            del self.connections[connection.peer]
        connection.lose(error, final=final)
        if not final:
            for each in [connection] if is_linked(connection.peer) else connection.same[1:]:
                for subscription in connection.subscriptions.values():
                    subscription.tell(each, error)

    def say_bye(self) -> None:
        """Tell all other ends that this wiring closes for good."""
        for connection in list(self.connections.values()):
            connection.tell({"word": "bye", "taken": self.board.incoming.taken(connection)})


async def greet(
    node: Node[Any], address: Address, run: bytes, token: bytes | None, timeout: float | None
) -> tuple[Peer, dict[str, Any]]:
    """Say hello to the wiring at an address; both ends prove the token if there is one.

    Args:
        node: The node of this end.
        address: The address of the other wiring.
        run: The run of this end.
        token: The token that both ends have; None for none.
        timeout: Seconds for each answer.

    Returns:
        The peer, and its hello.

    Raises:
        NotAuthorized: The other wiring requires a token, or has another one.
        ProtocolError: The node there is no wiring.
        SendError: The other wiring does not answer.
    """
    answer = await node.request(Message(encode(_hello(run)), address, header=WORD), timeout=timeout, dial="once")
    word = check_answer(decode(answer.data))
    peer = peer_of(answer)
    if token is None:
        if "token" in word:
            raise NotAuthorized("it requires a token, and this end has none", address, _GIVE_TOKEN)
        return peer, word
    own, other = node.identity, peer.identity or b""
    proof = proof_of(token, own, other, field(word, "run", bytes))
    answer = await ask(node, peer, encode(_hello(run) | {"proof": proof}), header=WORD, timeout=timeout)
    word = check_answer(decode(answer.data))
    if not is_proof(word.get("proof"), token, other, own, run):
        raise NotAuthorized("it does not prove that it has the token", address, _GIVE_TOKEN)
    return peer, word


def _hello(run: bytes) -> dict[str, Any]:
    return {"word": "hello", "version": VERSION, "run": run}


def _lost(address: Address | None, error: SendError) -> RedpollError:
    """Return the error of a request without an answer."""
    cause = error.__cause__
    if isinstance(cause, LinkError | ConfigError):
        return cause
    if isinstance(error, Refused):
        return WiringError(f"no wiring at {address} answers: {error}")
    return PeerLost(address, str(error))


async def _encoded(answer: Awaitable[Answer]) -> bytes:
    return encode(await answer)
