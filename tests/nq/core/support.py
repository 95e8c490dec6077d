"""What the tests of sessions share: puts whose end can be seen, and a session on a peer of the core without a loop."""

from __future__ import annotations

import uuid
from typing import Any

from redpoll import nq
from redpoll.node.door import LayerNode, Piece
from redpoll.node.sending import submit
from redpoll.nq.core.puts import Broadcast, Delivery
from redpoll.nq.core.session import Session
from redpoll.wire.link import Link
from redpoll.wire.outgoing import Stage
from redpoll.wire.peer import Peer
from tests.wire.support import ACK, add_link, feed, frame, frames, make_peer, taken

ME = uuid.UUID(int=1)
PEER = uuid.UUID(int=2)


class Put(Delivery):
    """A put that remembers its end."""

    def __init__(self, session: Session, body: bytes = b"x", group: Broadcast | None = None) -> None:
        self.ends: list[Any] = []
        self.assign(session, body, group)

    def settle(self, answer: Any, error: BaseException | None) -> None:
        # As the core does first; tests settle puts themselves.
        self.stage = Stage.ENDED
        super().settle(answer, error)

    def finish(self, result: Any, error: BaseException | None) -> None:
        self.ends.append(error)

    def withdrawn(self) -> None:
        self.ends.append("withdrawn")

    @property
    def end_of_it(self) -> Any:
        """Its one end: None, an error or "withdrawn"; "open" before."""
        assert len(self.ends) < 2
        return self.ends[0] if self.ends else "open"


class Group(Broadcast):
    """A put for several that remembers its end."""

    def __init__(self) -> None:
        self.ends: list[Any] = []

    def finish(self, result: Any, error: BaseException | None) -> None:
        self.ends.append(error)

    def withdrawn(self) -> None:
        self.ends.append("withdrawn")


class Awake:
    """What a link belongs to."""

    def submitted(self) -> None:
        """Something was given to it to be sent."""


class Direct:
    """The door of a node that has no loop."""

    queued = staticmethod(LayerNode.queued)
    sendings = staticmethod(LayerNode.sendings)

    def submit(self, peer: Peer, piece: Piece) -> None:
        submit(piece, peer, 0.0)

    def withdraw(self, piece: Piece) -> None:
        piece.peer.withdraw(piece, 0.0)


class Alone:
    """An endpoint, as far as a session can tell."""

    id = ME
    node = Direct()
    has_waiters = False

    def __init__(self) -> None:
        self.eased_with: list[int] = []
        self.unlinked_with: list[Session] = []

    def eased(self, session: Session) -> None:
        self.eased_with.append(session.count)

    def unlinked(self, session: Session) -> None:
        self.unlinked_with.append(session)


class Pair:
    """A session, and the link of a peer that its puts go out over."""

    def __init__(self, **options: Any) -> None:
        self.endpoint = Alone()
        self.session = Session(self.endpoint, PEER, nq.ConnectionOptions(**options))
        self.peer: Peer
        self.link: Link[Peer]

    def hello(self, **options: Any) -> None:
        """A process of the peer is there, and has said hello."""
        self.peer = make_peer(**options)
        self.link = add_link(self.peer)
        self.link.connection = Awake()
        self.session.link(self.peer)

    def put(self, *bodies: bytes) -> list[Put]:
        """Put these."""
        puts = [Put(self.session, body) for body in bodies]
        for put in puts:
            self.session.submit(put)
        return puts

    def went(self) -> list[tuple[bytes, bytes]]:
        """Header and body of each message that went out since this was asked."""
        return [(header, data) for _, _, _, header, data in frames(taken(self.link))]

    def confirm(self, *puts: Put) -> None:
        """The peer has these."""
        for put in puts:
            feed(self.link, frame(ACK, put.serial, identity=put.identity))


def ended(put: Put) -> bool:
    """Whether the core regards it as over as well."""
    return put.stage == Stage.ENDED
