"""Trunks to other processes: the node that carries them, and who is at their other ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from redpoll.address import Address
from redpoll.errors import (
    Closed,
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
from redpoll.node import Node
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
from redpoll.node.reports import LogLimit
from redpoll.serializers.base import Buffer
from redpoll.serializers.parts import Encoded
from redpoll.wiring.directory.tokens import is_proof, proof_of
from redpoll.wiring.exchange import IDLE
from redpoll.wiring.outlet import Chunk
from redpoll.wiring.pack import BATCH_BYTES, MIXED, unpack
from redpoll.wiring.trunk import Answer, Trunk
from redpoll.wiring.words import CREDIT, DATA, VERSION, WORD, check_answer, decode, encode, field, refusal

if TYPE_CHECKING:
    from redpoll.config import Config
    from redpoll.node import Received
    from redpoll.wiring.board import Board
    from redpoll.wiring.pipe import Pipe

__all__ = ["Net", "NetTrunk", "config_of", "greet"]

_logger = logging.getLogger("redpoll.wiring")

_DATA = DATA.size
_CREDIT = CREDIT.size
_D = ord("D")
_C = ord("C")

#: Windows of the node: pipes have their own, and what arrives is taken at once.
_WINDOW = 65_535
_WINDOW_BYTES = 64 * 1024 * 1024

#: Up to so many bytes of a message follow its own header in the body.
_TOGETHER = 16 * 1024

_GIVE_TOKEN = "give both the token of their directory"  # noqa: S105  # no token

#: Pipes that are not known, and of which the other end of a trunk is told so.
MAX_STRAYS = 1024

#: Seconds in which the other end of a trunk answers if it lives.
_LIFE_SIGN = 1.0

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
        in_order=True,
        acknowledge=False,
        serializer="raw",
        send_queue_limit=_U32,
        send_queue_bytes=2**63 - 1,
        # Small messages travel together, whatever one may have; and what the other end is told is rounded down.
        max_message_size=min(max(config.max_message_size, 2 * BATCH_BYTES) + MESSAGE_UNIT + DATA.size, 2**63 - 1),
    )


class _Piece(Piece):
    """Something on its way to whom nobody says whether it came: the numbers of a pipe do."""

    __slots__ = (*PIECE_FIELDS, "net")

    net: Net

    def settle(self, answer: Any, error: BaseException | None) -> None:  # noqa: ARG002  # Piece's
        """It is with the transport, or lost."""
        self.body = b""
        if error is not None:
            self.net.piece_lost(self.peer)


class NetTrunk(Trunk):
    """To a wiring of another process, over the links of two nodes."""

    def __init__(self, net: Net, peer: Peer, run: bytes) -> None:
        super().__init__(net.board, peer.identity or b"", run)
        self._net = net
        self.peer = peer
        #: The host that its links lead to; kept when they are lost.
        self.host = host_of(peer)
        #: Handles that came and are known here no more, as the other end was told.
        self.strays: set[int] = set()

    @property
    def place(self) -> str:
        """The address of its node."""
        return str(self.peer.address)

    def leads_where(self, other: Trunk) -> bool:
        """Identity and run are but claims without a token or certificates: then they are of who comes from the same host."""
        if not isinstance(other, NetTrunk) or not super().leads_where(other):
            return False
        if self._net.has_token:
            return True
        same_key = has_key_of(self.peer, other.peer)
        return (self.host is not None and self.host == other.host) if same_key is None else same_key

    async def is_rival_of(self, holder: Trunk) -> bool:
        """A token or a certificate proves it, and another certificate refutes it; else the other end of `holder` is asked.

        If that does not answer, its link may be dead, but not closed yet: its owner was started again.
        """
        if self._net.has_token or not holder.up:
            return False
        if not isinstance(holder, NetTrunk):
            # That is in this process, or this wiring itself.
            return True
        same_key = has_key_of(self.peer, holder.peer)
        return await holder.answers() if same_key is None else not same_key

    async def answers(self) -> bool:
        """Return True if the other end answers within `_LIFE_SIGN` seconds."""
        try:
            await self._net.ask(self.peer, _hello(self.board.run), _LIFE_SIGN)
        except LinkError:
            return False
        except RedpollError:
            pass  # a refusal is an answer
        return self.up

    def give_up(self, error: RedpollError) -> None:
        """Treat it as lost, for the node as well."""
        self._net.gone(self, error, final=False)

    @property
    def writable(self) -> bool:
        """Whether the link takes more at once."""
        return self._net.node.room(self.peer) > 0

    def call_writable(self) -> None:
        """Have `resume` called when it does."""
        self._net.node.when_room(self.peer, self._writable)

    def _writable(self) -> None:
        if self.up:
            self.resume()

    def send_data(self, pipe: Pipe, chunk: Chunk) -> None:
        """Pack the messages and send them."""
        batch = chunk.batch
        shape, body = batch.packed()
        header = DATA.pack(b"D", pipe.handle, chunk.first, pipe.promised, len(batch.messages), shape)
        self._net.submit(self.peer, header, body)

    def send_mark(self, pipe: Pipe, first: int) -> None:
        """Send a message without any."""
        self._net.submit(self.peer, DATA.pack(b"D", pipe.handle, first, pipe.promised, 0, 0), b"")

    def send_credit(self, number: int, taken: int) -> None:
        """Send a credit."""
        self._net.submit(self.peer, CREDIT.pack(b"C", number, taken), b"")

    def tell(self, word: dict[str, Any]) -> None:
        """Send a word."""
        self._net.submit(self.peer, WORD, encode(word))

    async def ask(self, word: dict[str, Any], timeout: float | None) -> Answer:
        """Send a request."""
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
        self._net.began(peer, False)

    def _session_ended(self, peer: Peer, error: RedpollError) -> None:
        self._net.ended(peer, error)


class Net:
    """The node of one wiring, and its trunks.

    Args:
        config: The node's options, as `config_of` made them.
        token: What other wirings have to have; None: nothing.
    """

    board: Board

    def __init__(self, config: Config, token: bytes | None) -> None:
        self._config = config
        self._token = token
        self.node = _NetNode(self, config)
        self.trunks: dict[Peer, NetTrunk] = {}
        self._acknowledge = config.resume is not None
        #: When something was given to the node last, on the loop's clock.
        self._submitted = 0.0
        self._dialling: dict[Address, asyncio.Task[NetTrunk]] = {}
        #: Peers whose trunk was lost with their session, while they may have kept theirs.
        self._lost: WeakSet[Peer] = WeakSet()
        #: Those whose trunk is about to be given up.
        self._failed: set[Peer] = set()

    @property
    def has_token(self) -> bool:
        """Whether other wirings have to show a token."""
        return self._token is not None

    async def start(self) -> None:
        """Listen.

        Raises:
            ConfigError: It cannot.
        """
        loop = asyncio.get_running_loop()
        self._time = loop.time
        self._lines = LogLimit(loop)
        await self.node.start()

    async def stop(self, drain: float | None) -> None:
        """Stop the node."""
        tasks = list(self._dialling.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.node.stop(drain)

    # Out

    def submit(self, peer: Peer, header: bytes, body: Encoded, *, first: bool = False) -> None:
        """Send something to a peer, in order behind all that was sent to it before; or before what waits for a link."""
        piece = _Piece()
        piece.net = self
        size = len(body)
        if size <= _TOGETHER and header != WORD:
            # Without a header a message is read with others at one go.
            body = header + body  # type: ignore[operator]  # what is in pieces is larger
            header = b""
        piece.load(header, body, acknowledge=self._acknowledge)
        now = self._time()
        self.node.submit(peer, piece, first=first, at_once=now - self._submitted > IDLE or size > _TOGETHER)
        self._submitted = now

    async def ask(self, peer: Peer, word: dict[str, Any], timeout: float | None) -> Answer:
        """Send a word and wait for the answer.

        Raises:
            LinkError: It did not come.
            WiringError: The other end does not understand it.
        """
        try:
            answer = await ask(self.node, peer, encode(word), header=WORD, timeout=timeout)
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
        try:
            peer, word = await greet(self.node, address, self.board.run, self._token, timeout)
        except SendError as error:
            raise _lost(address, error) from error
        trunk = self._met(peer, word)
        if trunk is None:
            raise PeerLost(address, "it is gone")
        return trunk

    def _greeted(self, peer: Peer, word: dict[str, Any]) -> dict[str, Any]:
        """Another wiring said hello: what to answer."""
        answer = _hello(self.board.run)
        token = self._token
        if token is None:
            self._met(peer, word)
            return answer
        if "proof" not in word:
            # It learns what its proof has to be made of, and nothing else.
            return answer | {"token": True}
        own, other = self.node.identity, peer.identity or b""
        if not is_proof(word["proof"], token, other, own, self.board.run):
            return refusal(NotAuthorized("it was shown another token than it has"))
        self._met(peer, word)
        return answer | {"proof": proof_of(token, own, other, field(word, "run", bytes))}

    def _met(self, peer: Peer, word: dict[str, Any]) -> NetTrunk | None:
        """The wiring at a peer said hello."""
        if field(word, "version", int) != VERSION:
            raise ProtocolError(f"it speaks version {word['version']} of wiring, and this end {VERSION}")
        run = field(word, "run", bytes)
        if not is_linked(peer):
            return None
        trunk = self.trunks.get(peer)
        if trunk is not None and trunk.run != run:
            trunk.lose(PeerLost(peer.address, "its wiring was started again"), final=False)
            trunk = None
        if trunk is None:
            trunk = self.trunks[peer] = NetTrunk(self, peer, run)
            self._lost.discard(peer)
        return trunk

    # In

    def arrived(self, messages: list[Received[bytes]]) -> list[Received[bytes]]:
        """Messages of one peer came; return those of pipes, which are done: each word is answered by itself."""
        peer = peer_of(messages[0])
        done: list[Received[bytes]] = []
        for message in messages:
            try:
                if self._is_of_a_pipe(self.trunks.get(peer), message):
                    done.append(message)
            except ProtocolError as error:
                self._refuse_word(message, error)
            except Exception as error:  # noqa: BLE001  # one message says nothing of the others
                self.node.failed(message, error)
        return done

    def _refuse_word(self, message: Received[bytes], error: ProtocolError) -> None:
        """Refuse what is no word of a wiring, with a warning at most once a second."""
        message.refuse(str(error))
        if self._lines.may_log():
            _logger.warning("refused a message from %s (%s): %s", message.address, remote_of(message), error)

    def _is_of_a_pipe(self, trunk: NetTrunk | None, message: Received[bytes]) -> bool:
        header = message.header
        body = message.data
        if not header:
            size = len(body)
            if trunk is not None and size >= _CREDIT:
                kind = body[0]
                if kind == _D and size >= _DATA:
                    _, handle, first, said, count, shape = DATA.unpack_from(body)
                    self._data(trunk, handle, first, said, count, shape, memoryview(body)[_DATA:])
                    return True
                if kind == _C and size == _CREDIT:
                    _, number, taken = CREDIT.unpack(body)
                    if number not in trunk.pipes:
                        # The other end may know this one as one peer where it is two here.
                        trunk = next((each for each in self._same(trunk) if number in each.pipes), trunk)
                    trunk.credit(number, taken)
                    return True
        elif header == WORD:
            answer = self._word(trunk, message)
            if not message.ended:
                self.node.conclude(message, answer)
            return False
        elif trunk is not None and len(header) == _DATA and header[0] == _D:
            _, handle, first, said, count, shape = DATA.unpack(header)
            self._data(trunk, handle, first, said, count, shape, body)
            return True
        message.refuse("this is a wiring")
        return False

    def _same(self, trunk: NetTrunk) -> list[NetTrunk]:
        """The other trunks to the same run of a wiring, which is two peers here, and maybe one there, or the reverse."""
        return [
            each
            for each in self.board.trunks.get((trunk.identity, trunk.run), ())
            if isinstance(each, NetTrunk) and each is not trunk and trunk.leads_where(each)
        ]

    def _data(self, trunk: NetTrunk, handle: int, first: int, said: int, count: int, shape: int, body: Buffer) -> None:
        port = trunk.ports.get(handle)
        if port is None:
            port = next((each.ports[handle] for each in self._same(trunk) if handle in each.ports), None)
        if port is None:
            self._stray(trunk, handle)
            return
        inlet = port.inlet
        if not count:
            inlet.arrived(first, said, [], 0)
        elif not inlet.admits(count):
            inlet.refuse(count)
        else:
            size = len(body)
            inlet.arrived(first, said, unpack(shape, count, body), size - 4 * count if shape == MIXED else size)

    @staticmethod
    def _stray(trunk: NetTrunk, handle: int) -> None:
        """Messages came for a pipe that is not known here: its owner is to open it again, and to count what is lost."""
        if handle in trunk.strays or len(trunk.strays) >= MAX_STRAYS:
            return
        trunk.strays.add(handle)
        trunk.tell({"word": "stray", "handle": handle})

    def piece_lost(self, peer: Peer) -> None:
        """What was sent to a peer failed, and is not sent again: its trunk is as good as lost. Called by the core."""
        trunk = self.trunks.get(peer)
        if trunk is not None and peer not in self._failed:
            self._failed.add(peer)
            self.board.loop.call_soon(self._trunk_failed, trunk)

    def _trunk_failed(self, trunk: NetTrunk) -> None:
        peer = trunk.peer
        self._failed.discard(peer)
        if self.trunks.get(peer) is not trunk:
            return
        self.gone(trunk, PeerLost(peer.address, "what was sent to it is lost"), final=False)
        if is_linked(peer):
            self.submit(peer, WORD, encode({"word": "lost"}), first=True)
        else:
            self._lost.add(peer)

    def _word(self, trunk: NetTrunk | None, message: Received[bytes]) -> Any:
        word = decode(message.data)
        name = field(word, "word", str)
        if name == "hello":
            return encode(self._greeted(peer_of(message), word))
        if name == "describe" and (trunk is not None or self._token is None):
            # Only who has shown the token sees what others do not.
            return encode(self.board.describe(everything=self._token is not None))
        if name == "lost":
            if trunk is not None:
                self.gone(trunk, PeerLost(trunk.peer.address, "its session was over there"), final=False)
            return None
        if name == "stray":
            handle = field(word, "handle", int)
            for each in () if trunk is None else (trunk, *self._same(trunk)):
                if any(pipe.handle == handle and pipe.trunk is each for pipe in each.pipes.values()):
                    self.gone(each, PeerLost(each.peer.address, "it has a pipe no more"), final=False)
            return None
        if name == "bye":
            if trunk is not None:
                taken = word.get("taken")
                trunk.took(taken if isinstance(taken, list | tuple) else ())
                self.gone(trunk, PeerLost(trunk.peer.address, "it was closed"), final=True)
            return None
        if trunk is None:
            message.refuse("say hello first")
            return None
        return _answer(trunk, word)

    def began(self, peer: Peer, renewed: bool) -> None:
        """A peer has a link again: tell it that its trunk was lost here, as its own session may have outlived that."""
        if renewed:
            self.ended(peer, PeerLost(peer.address, "its node was started again"))
            self._lost.discard(peer)
        elif peer in self._lost:
            # Before the hello that may wait: what that begins is not what was lost.
            self.submit(peer, WORD, encode({"word": "lost"}), first=True)

    def ended(self, peer: Peer, error: RedpollError) -> None:
        """A peer is gone."""
        trunk = self.trunks.get(peer)
        if trunk is not None:
            self._lost.add(peer)
            self.gone(trunk, error, final=False)

    def gone(self, trunk: NetTrunk, error: RedpollError, *, final: bool) -> None:
        """A trunk is lost."""
        if self.trunks.get(trunk.peer) is trunk:
            del self.trunks[trunk.peer]
        trunk.lose(error, final=final)

    def say_bye(self) -> None:
        """Tell all that this wiring will not be back."""
        for trunk in list(self.trunks.values()):
            trunk.tell({"word": "bye", "taken": self.board.ports.taken(trunk)})


async def greet(
    node: Node[Any], address: Address, run: bytes, token: bytes | None, timeout: float | None
) -> tuple[Peer, dict[str, Any]]:
    """Say hello to the wiring at an address, and have both ends show the token if there is one.

    Args:
        node: What says it.
        address: Where to.
        run: Of the wiring that says it.
        token: What both ends have; None: nothing.
        timeout: Seconds for each answer.

    Returns:
        The peer, and its hello.

    Raises:
        NotAuthorized: It wants a token, or has another one.
        ProtocolError: It is no wiring.
        SendError: It does not answer.
    """
    answer = await node.request(Message(encode(_hello(run)), address, header=WORD), timeout=timeout, dial="once")
    word = check_answer(decode(answer.data))
    peer = peer_of(answer)
    if token is None:
        if "token" in word:
            raise NotAuthorized("it wants a token, and was shown none", address, _GIVE_TOKEN)
        return peer, word
    own, other = node.identity, peer.identity or b""
    proof = proof_of(token, own, other, field(word, "run", bytes))
    answer = await ask(node, peer, encode(_hello(run) | {"proof": proof}), header=WORD, timeout=timeout)
    word = check_answer(decode(answer.data))
    if not is_proof(word.get("proof"), token, other, own, run):
        raise NotAuthorized("it does not show the token", address, _GIVE_TOKEN)
    return peer, word


def _hello(run: bytes) -> dict[str, Any]:
    return {"word": "hello", "version": VERSION, "run": run}


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
