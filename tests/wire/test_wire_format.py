"""docs/explanation/wire-format.md against the code: every example, table and section number."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import cast

import pytest

from redpoll.errors import REFUSALS, HandlerFailed
from redpoll.node.claims import REJECTED
from redpoll.transport.connection import ANNOUNCEMENT_GRACE, ANNOUNCEMENT_PATIENCE
from redpoll.wire import frames
from redpoll.wire.assembly import EAGER_ALLOCATION
from redpoll.wire.capabilities import Announcement, serializer_flags
from redpoll.wire.frames import ACK_NO_ANSWER, ANSWERED, MAX_REFUSAL_TEXT, Control, Goodbye
from redpoll.wire.handshake import Handshake
from redpoll.wire.libchirp import LibchirpLink
from redpoll.wire.link import Link
from redpoll.wire.metadata import Field
from redpoll.wire.peer import Peer
from redpoll.wire.session import FENCED, RECORD, Shown
from redpoll.wire.states import TRANSITIONS, Event, LinkState
from tests.doc_pages import blocks
from tests.source_tree import ROOT, SRC
from tests.wire.support import (
    NAME,
    REQ_ACK,
    RETRY,
    TYPE_BITS,
    WANTED,
    Feeding,
    Sent,
    Work,
    add_link,
    bare_link,
    begin_all,
    feed,
    feed_as,
    frame,
    handshake,
    linked,
    make_peer,
    metadata,
    peer_of,
    plain_link,
    taken,
)

PAGE = ROOT / "docs" / "explanation" / "wire-format.md"
TEXT = PAGE.read_text()


def named(
    link: Link[Peer], body: bytes, kind: int = REQ_ACK, *, timeout: float | None = None, header: bytes = b""
) -> Sent:
    """Send a message that has the page's identity."""
    out = Sent(body, kind, header=header, timeout=timeout)
    out.identity = NAME
    peer_of(link).submit(out, 0.0)
    return out


def message(**options: bytes | float) -> bytes:
    """The bytes of one message on the wire."""
    link = add_link(make_peer(serial=int(options.pop("serial", 1)) - 1))
    named(link, **options)  # type: ignore[arg-type]
    return taken(link)


def sent_again() -> bytes:
    link = linked()
    out = Sent(b"hello", REQ_ACK | RETRY)
    out.identity, out.serial = NAME, 1
    link.transmit(out, peer_of(link), 0.0)
    return taken(link)


def received(link: Link[Peer]) -> Work:
    """A request with the page's identity and serial, being handled."""
    feed(link, frame(REQ_ACK | WANTED, 0x11223344, b"?"))
    (job,) = begin_all(link)
    return job


def plain(act: Callable[[Link[Peer]], None]) -> bytes:
    link = plain_link()
    peer_of(link).serial = 7
    act(link)
    return taken(link)


def ending(act: Callable[[Link[Peer], Work], object]) -> bytes:
    link = linked()
    act(link, received(link))
    return taken(link)


def control(act: Callable[[Link[Peer]], object]) -> bytes:
    link = linked()
    act(link)
    return taken(link)


def goodbye(said: Goodbye) -> bytes:
    link = linked()
    if said is not Goodbye.NONE:
        feed(link, frame(REQ_ACK, 9))
    link.leave(accept_all=said is Goodbye.ALL)
    return taken(link)


def credit(link: Link[Peer]) -> None:
    link.receive_window.announce(16, 1 << 20)
    for _ in range(4):
        link.credit(1, 10)


def fragments() -> bytes:
    link = linked(fragment_size=3)
    named(link, b"abcde", header=b"H")
    return taken(link)


def recall(*, hard: bool) -> bytes:
    link = add_link(make_peer(serial=0x11223343))
    out = named(link, b"x")
    taken(link)
    link.send_cancel(out, hard)
    return taken(link)


NUMBER = bytes.fromhex("ffeeddccbbaa99887766554433221100")

#: What the code writes for each example of the page.
EXAMPLES: dict[str, Callable[[], bytes]] = {
    "handshake": lambda: Handshake(8000, bytes(range(0x10, 0x20))).encode(),
    "message": lambda: message(body=b"hello", header=b"HH", serial=0x11223344),
    "request with five seconds left": lambda: message(body=b"?", kind=REQ_ACK | WANTED, timeout=5.0),
    "unacknowledged message with a header": lambda: message(body=b"", kind=0, header=b"HH"),
    "message sent again": sent_again,
    "acknowledgement to libchirp, serial 8 being the next": lambda: plain(
        lambda link: link.acknowledge(received(link))
    ),
    "acknowledgement of the message with serial 0x11223344": lambda: ending(Link.acknowledge),
    "acknowledgement without an answer": lambda: ending(lambda link, job: link.acknowledge(job, ACK_NO_ANSWER)),
    "refusal: the handler raised": lambda: ending(lambda link, job: link.refuse(job, HandlerFailed.code, "no")),
    "answer": lambda: ending(lambda link, job: link.answer(job, b"ok", b"H", ends=False)),
    "answer that acknowledges": lambda: ending(lambda link, job: link.answer(job, b"ok", ends=True)),
    "probe to libchirp, serial 8 being the next": lambda: plain(
        lambda link: cast("LibchirpLink", link).probe(peer_of(link))
    ),
    "announcement: 1 slot, a window of 64 messages and 4 MiB, messages up to 100 MiB": lambda: Announcement(
        slots=1, window=64, window_bytes=4 << 20, max_message_size=100 << 20, epoch=0xDECADE00
    ).encode(),
    "announcement: the same, with MessagePack": lambda: Announcement(
        slots=1,
        window=64,
        window_bytes=4 << 20,
        max_message_size=100 << 20,
        epoch=0xDECADE00,
        flags=serializer_flags("msgpack"),
    ).encode(),
    "ping 7": lambda: control(lambda link: link.control(Control.PING, 7)),
    "pong 7": lambda: control(lambda link: feed(link, frame(Control.PING, 7))),
    "goodbye: handled up to serial 9": lambda: goodbye(Goodbye.UP_TO),
    "goodbye: none was taken": lambda: goodbye(Goodbye.NONE),
    "goodbye: all are handled": lambda: goodbye(Goodbye.ALL),
    "credit for 4 messages of 40 bytes": lambda: control(credit),
    "cancel of the message with serial 0x11223344": lambda: recall(hard=False),
    "cancel of the same and of its handler": lambda: recall(hard=True),
    "session: prove that the other link is yours": lambda: control(
        lambda link: link.control(Control.SESSION, body=b"\x01" + NUMBER)
    ),
    "session: it lasts 30 s, and this is my secret": lambda: control(
        lambda link: link.control(Control.SESSION, body=Shown(30, bytes(range(0xA0, 0xB0))).encode())
    ),
    "session: it lasts 30 s": lambda: control(lambda link: link.control(Control.SESSION, body=Shown(30).encode())),
    "session: a later run took your place": lambda: control(lambda link: link.control(Control.SESSION, body=FENCED)),
    "session: the number of my record of you": lambda: control(
        lambda link: link.control(Control.SESSION, body=RECORD + bytes(range(1, 9)))
    ),
    "session: you are not let in": lambda: control(lambda link: link.control(Control.SESSION, body=REJECTED)),
    "five bytes in pieces of three, with a header": fragments,
    "metadata block: 1.5 s left, for the layer nq": lambda: metadata(
        (Field.DEADLINE, (1500).to_bytes(4, "big")), (Field.LAYER, b"nq")
    ),
    "message with 1.5 s left": lambda: message(body=b"hello", timeout=1.5),
}

FRAMES = [name for name in EXAMPLES if name != "handshake" and not name.startswith("metadata block")]


def shown() -> dict[str, bytes]:
    """The examples of the page by their titles."""
    titled = {re.search(r'title="(.*)"', block.info): block.text for block in blocks(PAGE)}
    return {match[1]: bytes.fromhex(text) for match, text in titled.items() if match is not None}


def table(first: str) -> list[list[str]]:
    """The rows of the table whose first line begins with certain cells."""
    lines = TEXT.splitlines()
    start = next(number for number, line in enumerate(lines) if line.strip().startswith(first)) + 2
    rows = []
    for line in lines[start:]:
        if not line.strip().startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip().strip("|").split("|")])
    return rows


def section(number: str) -> str:
    """The text of one section, its subsections among it."""
    depth = number.count(".") + 2
    match = re.search(
        rf"^#{{{depth}}} {re.escape(number)} .*?(?=^#{{2,{depth}}} |\Z)", TEXT, flags=re.MULTILINE | re.DOTALL
    )
    assert match is not None, number
    return match[0]


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name: str) -> None:
    """An example of the page is what the code writes."""
    assert shown()[name].hex() == EXAMPLES[name]().hex()


def test_every_example_is_checked() -> None:
    """No example of the page is unchecked."""
    assert shown().keys() == EXAMPLES.keys()


@pytest.mark.parametrize("feeding", list(Feeding))
@pytest.mark.parametrize("name", FRAMES)
def test_example_is_read(name: str, feeding: Feeding) -> None:
    """An example of the page is legal input, however it arrives."""
    data = shown()[name]
    link = add_link(make_peer(slots=9, window=100), plain="libchirp" in name)
    peer = peer_of(link)
    for _ in range(4):
        peer.submit(Sent(bytes(10), 0), 0.0)
        peer.slots.running = 0
    feed_as(link, data, feeding)
    assert not link.incoming.unfinished


def test_handshake_is_read() -> None:
    """The page's handshake opens a link."""
    link = bare_link()
    feed(link, shown()["handshake"])
    assert link.handshake == Handshake(8000, bytes(range(0x10, 0x20)))
    assert handshake(8000, bytes(range(0x10, 0x20))) == shown()["handshake"]


def test_type_bits() -> None:
    """The page names every bit of the type byte."""
    assert {(name, int(bit, 16)) for bit, name, *_ in table("| bit | name |")} == {
        (name, getattr(frames, name)) for name in TYPE_BITS
    }


def test_control_types() -> None:
    """The page names every control frame."""
    rows = table("| type | name | serial |")
    assert {(name, int(kind, 16)) for kind, name, *_ in rows} == {(each.name, int(each)) for each in Control}


def test_refusal_codes() -> None:
    """The page has every refusal code, and is right about whether the work had begun."""
    rows = table("| code | meaning | begun |")
    assert {int(code): begun == "yes" for code, _, begun in rows} == {
        code: kind.sent for code, kind in REFUSALS.items()
    } | {ANSWERED: True}


def test_metadata_keys() -> None:
    """The page names every key of a metadata block."""
    assert {(name, int(key)) for key, name, _ in table("| key | name |")} == {(each.name, int(each)) for each in Field}


def test_goodbyes() -> None:
    """The page has every goodbye."""
    assert [int(body) for body, _ in table("| body | meaning |")] == [int(each) for each in Goodbye]


def test_states() -> None:
    """The page's table of states is the code's."""
    rows = {name: rest for name, *rest in table("| state of a link |")}
    assert set(rows) == {state.name for state in LinkState}
    for state in LinkState:
        sends, takes, ours, theirs = rows[state.name]
        link = bare_link()
        link.state = state
        for event, cell in ((Event.GOODBYE_SENT, ours), (Event.GOODBYE_RECEIVED, theirs)):
            following = TRANSITIONS.get((state, event))
            assert cell in ({following.name} if following is not None else {"", "illegal"})
        assert (sends, takes) == _allows(state)


def _allows(state: LinkState) -> tuple[str, str]:
    """What a link sends and accepts in a state, in the page's words."""
    words = []
    for accept_all in (False, True):
        link = bare_link()
        link.accepts_all = accept_all
        before = next((each for each, event in TRANSITIONS if TRANSITIONS[each, event] is state), None)
        if before is not None:
            link.state = before
            link.step(next(event for each, event in TRANSITIONS if (TRANSITIONS[each, event], each) == (state, before)))
        words.append((link.sending, link.accepting))
    (sends, takes), (_, accepts_all) = words
    return ("yes" if sends else "no"), ("yes" if takes else "only with body 2" if accepts_all else "no")


def test_sections_that_the_code_cites() -> None:
    """A section that a comment cites is there, and is about what the comment names."""
    for path in sorted((SRC / "redpoll").rglob("*.py")):
        lines = path.read_text().splitlines()
        for at, line in enumerate(lines):
            for number in re.findall(r"\bsection (\d(?:\.\d)?)\b", line):
                about = section(number).lower()
                words = set(re.findall(r"[a-z]{6,}", " ".join(lines[max(0, at - 4) : at + 1]).lower()))
                said = words - {"section", "format", "between", "messages", "message", "another"}
                assert any(word in about for word in said), (
                    f"{path.name}: section {number} is not about: {line.strip()}"
                )


def test_numbers() -> None:
    """Limits and times that the page gives are the code's."""
    assert f"{MAX_REFUSAL_TEXT:,} bytes of UTF-8" in TEXT
    assert f"{EAGER_ALLOCATION >> 10} KiB" in section("2")
    assert f"{ANNOUNCEMENT_GRACE * 1000:.0f} ms" in section("5.1")
    assert f"{ANNOUNCEMENT_PATIENCE:.0f} s more" in section("5.1")
