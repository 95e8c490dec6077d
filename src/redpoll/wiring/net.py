"""Trunks to other processes: the node that carries them, and who is at their other ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING, Any

from redpoll.address import Address
from redpoll.errors import (
    Closed,
    ConfigError,
    LinkError,
    PeerLost,
    ProtocolError,
    RedpollError,
    Refused,
    SendError,
    WiringError,
)
from redpoll.message import Message
from redpoll.node import Node
from redpoll.serializers.base import Buffer
from redpoll.serializers.parts import Encoded
from redpoll.wire.capabilities import MESSAGE_UNIT
from redpoll.wire.frames import Kind
from redpoll.wire.outgoing import OUTGOING_FIELDS, Outgoing
from redpoll.wiring.exchange import IDLE
from redpoll.wiring.outlet import Chunk
from redpoll.wiring.pack import BATCH_BYTES, MIXED, unpack
from redpoll.wiring.trunk import Answer, Trunk
from redpoll.wiring.words import CREDIT, DATA, VERSION, WORD, decode, encode, field, refusal

if TYPE_CHECKING:
    from redpoll.config import Config
    from redpoll.node.received import Received
    from redpoll.wire.inbound import Inbound
    from redpoll.wire.peer import Peer
    from redpoll.wiring.board import Board
    from redpoll.wiring.pipe import Pipe

__all__ = ["Net", "NetTrunk", "config_of"]

_REQ_ACK = int(Kind.REQ_ACK)
_DATA = DATA.size
_CREDIT = CREDIT.size
_D = ord("D")
_C = ord("C")

#: Windows of the node: pipes have their own, and what arrives is taken at once.
_WINDOW = 65_535
_WINDOW_BYTES = 64 * 1024 * 1024

#: Up to so many bytes of a message follow its own header in the body.
_TOGETHER = 16 * 1024

#: What stands for the message of a piece; nobody looks at its identity.
_NOTHING = Message(None)
_IDENTITY = _NOTHING.identity

_YEAR = 31_536_000.0
_U32 = 2**32 - 1


def config_of(config: Config, options: dict[str, Any]) -> Config:
    """The options of the node under a wiring.

    Args:
        config: What the application gave.
        options: What the wiring's own options say.
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
        acknowledge=False,
        serializer="raw",
        send_queue_limit=_U32,
        send_queue_bytes=2**63 - 1,
        # Small messages travel together, whatever one may have; and what the other end is told is rounded down.
        max_message_size=min(max(config.max_message_size, 2 * BATCH_BYTES) + MESSAGE_UNIT + DATA.size, 2**63 - 1),
    )


class _Piece(Outgoing):
    """Something on its way to whom nobody says whether it came: the numbers of a pipe do."""

    __slots__ = OUTGOING_FIELDS

    def settle(self, answer: Inbound[Any] | None, error: BaseException | None) -> None:  # noqa: ARG002  # Outgoing's
        """It is with the transport, or lost."""
        self.body = b""


class NetTrunk(Trunk):
    """To a wiring of another process, over the links of two nodes."""

    def __init__(self, net: Net, peer: Peer, run: bytes) -> None:
        super().__init__(net.board, peer.identity or b"", run)
        self._net = net
        self.peer = peer

    @property
    def place(self) -> str:
        """The address of its node."""
        return str(self.peer.address)

    @property
    def writable(self) -> bool:
        """Whether the link takes more at once."""
        return self.peer.places > 0

    def call_writable(self) -> None:
        """Have `resume` called when it does."""
        waiter: asyncio.Future[None] = self.board.loop.create_future()
        waiter.add_done_callback(self._writable)
        self.peer.starved.append(waiter)

    def _writable(self, _: asyncio.Future[None]) -> None:
        if self.up:
            self.resume()

    def send_data(self, pipe: Pipe, chunk: Chunk) -> None:
        """Pack the messages and send them."""
        batch = chunk.batch
        shape, body = batch.packed()
        header = DATA.pack(b"D", pipe.handle, chunk.first, pipe.outlet.next, len(batch.messages), shape)
        self._net.submit(self.peer, header, body)

    def send_mark(self, pipe: Pipe, first: int) -> None:
        """Send a message without any."""
        self._net.submit(self.peer, DATA.pack(b"D", pipe.handle, first, pipe.outlet.next, 0, 0), b"")

    def send_credit(self, number: int, taken: int) -> None:
        """Send a credit."""
        self._net.submit(self.peer, CREDIT.pack(b"C", number, taken), b"")

    def tell(self, word: dict[str, Any]) -> None:
        """Send a word."""
        self._net.submit(self.peer, WORD, encode(word))

    async def ask(self, word: dict[str, Any], timeout: float | None) -> Answer:
        """Send a request."""
        return await self._net.ask(self.peer, word, timeout)


class _ToPeer(Message[bytes]):
    """A message for one peer, whatever its address means."""

    __slots__ = ("_peer",)

    def __init__(self, peer: Peer, data: bytes) -> None:
        super().__init__(data, peer.address, header=WORD)
        self._peer = peer

    def _bound_to(self) -> Any:
        return self._peer


class _NetNode(Node[bytes]):
    _in_order = True

    def __init__(self, net: Net, config: Config) -> None:
        super().__init__(net.arrived, config)
        self._net = net

    def _session_ended(self, peer: Peer, error: RedpollError) -> None:
        self._net.ended(peer, error)

    def _session_began(self, peer: Peer, renewed: bool) -> None:
        if renewed:
            self._net.ended(peer, PeerLost(peer.address, "its node was started again"))


class Net:
    """The node of one wiring, and its trunks.

    Args:
        config: The node's options, as `config_of` made them.
    """

    board: Board

    def __init__(self, config: Config) -> None:
        self._config = config
        self.node = _NetNode(self, config)
        self.trunks: dict[Peer, NetTrunk] = {}
        self._kind = _REQ_ACK if config.resume is not None else 0
        #: When something was given to the node last, on the loop's clock.
        self._submitted = 0.0
        self._dialling: dict[Address, asyncio.Task[NetTrunk]] = {}

    async def start(self) -> None:
        """Listen.

        Raises:
            ConfigError: It cannot.
        """
        self._time = asyncio.get_running_loop().time
        await self.node.start()

    async def stop(self, drain: float | None) -> None:
        """Stop the node."""
        tasks = list(self._dialling.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.node.stop(drain)

    # Out

    def submit(self, peer: Peer, header: bytes, body: Encoded) -> None:
        """Send something to a peer, in order behind all that was sent to it before."""
        out = _Piece()
        out.message = _NOTHING
        out.identity = _IDENTITY
        size = len(body)
        if size <= _TOGETHER and header != WORD:
            # Without a header a message is read with others at one go.
            out.header = b""
            out.body = header + body  # type: ignore[operator]  # what is in pieces is larger
        else:
            out.header = header
            out.body = body
        out.size = len(header) + size
        out.kind = self._kind
        out.timeout = out.deadline = out.link = None
        out.retry = out.serial = out.stage = 0
        out.pinned = True
        out.once = out.hard = False
        now = self._time()
        peer.submit(out, now)
        link = peer.link
        if link is not None:
            if now - self._submitted > IDLE or size > _TOGETHER:
                link.owner.flush()
            else:
                link.owner.submitted()
            self._submitted = now

    async def ask(self, peer: Peer, word: dict[str, Any], timeout: float | None) -> Answer:
        """Send a word and wait for the answer.

        Raises:
            LinkError: It did not come.
            WiringError: The other end does not understand it.
        """
        try:
            answer = await self.node.request(_ToPeer(peer, encode(word)), timeout=timeout)
        except SendError as error:
            raise _lost(peer.address, error) from error
        return decode(answer.data)

    async def connect(self, address: Address, timeout: float) -> NetTrunk:
        """The trunk to the wiring at an address.

        Raises:
            LinkError: Nobody can be reached there, or nobody answers.
            WiringError: It is no wiring.
        """
        task = self._dialling.get(address)
        if task is None:
            task = self._dialling[address] = self.board.loop.create_task(self._connect(address, timeout))
            task.add_done_callback(partial(self._dialled, address))
        return await asyncio.shield(task)

    def _dialled(self, address: Address, task: asyncio.Task[NetTrunk]) -> None:
        self._dialling.pop(address, None)
        if not task.cancelled():
            # Whoever waited for it may have gone.
            task.exception()

    async def _connect(self, address: Address, timeout: float) -> NetTrunk:
        message = Message(encode(self._hello()), address, header=WORD)
        try:
            answer = await self.node.request(message, timeout=timeout, dial="once")
        except SendError as error:
            raise _lost(address, error) from error
        trunk = self._met(answer.link.peer, decode(answer.data))
        if trunk is None:
            raise PeerLost(address, "it is gone")
        return trunk

    def _hello(self) -> dict[str, Any]:
        return {"word": "hello", "version": VERSION, "run": self.board.run}

    def _met(self, peer: Peer | None, word: dict[str, Any]) -> NetTrunk | None:
        """The wiring at a peer said hello."""
        if field(word, "version", int) != VERSION:
            raise ProtocolError(f"it speaks version {word['version']} of wiring, and this end {VERSION}")
        run = field(word, "run", bytes)
        if peer is None or not peer.links:
            return None
        trunk = self.trunks.get(peer)
        if trunk is not None and trunk.run != run:
            trunk.lose(PeerLost(peer.address, "its wiring was started again"), final=False)
            trunk = None
        if trunk is None:
            trunk = self.trunks[peer] = NetTrunk(self, peer, run)
        return trunk

    # In

    def arrived(self, message: Received[bytes]) -> Any:
        """A message came."""
        frame = message.frame
        trunk = self.trunks.get(message.link.peer)  # type: ignore[arg-type]  # it has one
        header = frame[3]
        body = frame[5]
        if not header:
            size = len(body)
            if trunk is not None and size >= _CREDIT:
                kind = body[0]
                if kind == _D and size >= _DATA:
                    _, handle, first, said, count, shape = DATA.unpack_from(body)
                    self._data(trunk, handle, first, said, count, shape, memoryview(body)[_DATA:])
                    return None
                if kind == _C and size == _CREDIT:
                    _, number, taken = CREDIT.unpack(body)
                    trunk.credit(number, taken)
                    return None
        elif header == WORD:
            return self._word(trunk, message)
        elif trunk is not None and len(header) == _DATA and header[0] == _D:
            _, handle, first, said, count, shape = DATA.unpack(header)
            self._data(trunk, handle, first, said, count, shape, body)
            return None
        message.refuse("this is a wiring")
        return None

    @staticmethod
    def _data(trunk: NetTrunk, handle: int, first: int, said: int, count: int, shape: int, body: Buffer) -> None:
        port = trunk.ports.get(handle)
        if port is None:
            return
        inlet = port.inlet
        if not count:
            inlet.arrived(first, said, [], 0)
        elif not inlet.admits(count):
            inlet.refuse(count)
        else:
            size = len(body)
            inlet.arrived(first, said, unpack(shape, count, body), size - 4 * count if shape == MIXED else size)

    def _word(self, trunk: NetTrunk | None, message: Received[bytes]) -> Any:
        word = decode(message.data)
        name = field(word, "word", str)
        if name == "hello":
            self._met(message.link.peer, word)
            return encode(self._hello())
        if name == "describe":
            return encode(self.describe())
        if name == "bye":
            if trunk is not None:
                self._gone(trunk, PeerLost(trunk.peer.address, "it was closed"), final=True)
            return None
        if trunk is None:
            message.refuse("say hello first")
            return None
        return _answer(trunk, word)

    def describe(self) -> dict[str, Any]:
        """What whoever asks is told of this wiring."""
        return self.board.describe()

    def ended(self, peer: Peer, error: RedpollError) -> None:
        """A peer is gone."""
        trunk = self.trunks.get(peer)
        if trunk is not None:
            self._gone(trunk, error, final=False)

    def _gone(self, trunk: NetTrunk, error: RedpollError, *, final: bool) -> None:
        if self.trunks.get(trunk.peer) is trunk:
            del self.trunks[trunk.peer]
        trunk.lose(error, final=final)

    def say_bye(self) -> None:
        """Tell all that this wiring will not be back."""
        for trunk in list(self.trunks.values()):
            trunk.tell({"word": "bye"})


def _lost(address: Address | None, error: SendError) -> RedpollError:
    """What a question that got no answer says of who was asked."""
    cause = error.__cause__
    if isinstance(cause, LinkError | ConfigError):
        return cause
    if isinstance(error, Refused):
        return WiringError(f"no wiring at {address} answers: {error}")
    return PeerLost(address, str(error))


def _answer(trunk: Trunk, word: dict[str, Any]) -> Any:
    """What to answer to a word: bytes, or what has to be awaited for them."""
    try:
        answer = trunk.said(word)
    except Closed as error:
        return encode(refusal(error))
    except ProtocolError:
        raise
    except RedpollError as error:
        return encode(refusal(error))
    return encode(answer) if isinstance(answer, dict) else _answer_later(answer)


async def _answer_later(answer: Awaitable[Answer]) -> bytes:
    try:
        return encode(await answer)
    except RedpollError as error:
        return encode(refusal(error))
