from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redpoll.errors import OtherProtocol
from redpoll.wire.handshake import HANDSHAKE_SIZE, Handshake
from redpoll.wire.states import LinkState
from tests.wire.support import THEIRS, Feeding, announcement, bare_link, feed, feed_as, frame, handshake


def test_golden_bytes() -> None:
    """A handshake is a port and an identity: 18 bytes, as chirp.md 1.1 has them."""
    encoded = Handshake(2998, bytes(range(16))).encode()
    assert encoded.hex() == "0bb6000102030405060708090a0b0c0d0e0f"
    assert len(encoded) == HANDSHAKE_SIZE == 18


@given(st.integers(0, 0xFFFF), st.binary(min_size=16, max_size=16), st.binary(max_size=40))
def test_round_trip(port: int, identity: bytes, behind: bytes) -> None:
    """Any port and any identity survive a round trip, whatever follows them."""
    shaken = Handshake(port, identity)
    assert Handshake.decode(shaken.encode() + behind) == shaken
    assert Handshake.decode(memoryview(shaken.encode() + behind)) == shaken


def test_received(feeding: Feeding) -> None:
    """A link reads a handshake however its bytes arrive, also split, which libchirp does not accept."""
    link = bare_link()
    feed_as(link, handshake(2999, THEIRS), feeding, between=announcement())
    assert link.handshake == (2999, THEIRS)
    assert (link.remote_identity, link.state) == (THEIRS, LinkState.OPEN)


def test_nothing_is_heard_before_its_last_byte() -> None:
    """17 bytes are no handshake."""
    link = bare_link()
    feed(link, handshake()[:17])
    assert (link.handshake, link.state, link.incoming.unfinished) == (None, LinkState.HANDSHAKE, True)


@pytest.mark.parametrize(
    ("said", "name"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP"),
        (b"HTTP/1.0 5", "HTTP"),
        (b"SSH-2.0-OpenSSH_9.2p1\r\n", "SSH"),
    ],
)
def test_other_protocols(said: bytes, name: str, feeding: Feeding) -> None:
    """The greeting of another protocol's server is not a handshake, however it arrives, and however little of it."""
    link = bare_link()
    with pytest.raises(OtherProtocol) as caught:
        feed_as(link, said, feeding)
    assert str(caught.value) == f"protocol error: the peer speaks {name} (is the address right?)"
    assert link.handshake is None


@pytest.mark.parametrize("port", [0x4854, 0x5353])
def test_a_port_that_looks_like_another_protocol(port: int) -> None:
    """A node with a port that begins as such words do is heard like any."""
    for identity in (THEIRS, b"TP/2 is no word.", b"H-3.0 is none...", b"TP/1-and-a-name."):
        link = bare_link()
        feed(link, handshake(port, identity))
        assert link.handshake == (port, identity)


@given(st.lists(st.integers(1, 200), max_size=20))
def test_frames_behind_it(cuts: list[int]) -> None:
    """Frames glued behind the handshake are read, wherever the reads end."""
    link = bare_link()
    feed(link, handshake() + announcement(window=9) + frame(0, 5, b"one") + frame(0, 6, b"two"), cuts)
    assert link.window.limit == 9
    assert [bytes(message.data) for message in link.arrived.messages] == [b"one", b"two"]
