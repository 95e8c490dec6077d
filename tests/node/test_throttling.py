"""Order, slots and windows: how many messages are handled at a time, how many wait, and what never waits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redpoll import (
    Received,
)
from redpoll.wire.capabilities import Announcement
from tests.interop.raw import ACK, REQ_ACK, RawLink, handshake, raw_listener
from tests.node.support import Inbox, announcement, make, raw_dialling, to, turns, until, within

# Order


@pytest.mark.asyncio
@pytest.mark.parametrize("slots", [1, 3, None])
async def test_handlers_start_in_the_order_of_sends(slots: int | None) -> None:
    """Whatever the slots, sizes and modes, handlers of one peer's messages start in the order of their sends."""
    begun: list[int] = []

    async def handler(message: Received[bytes]) -> None:
        begun.append(int(message.header))
        if begun[-1] % 3 == 0:
            await asyncio.sleep(0)

    async with make(handler, slots=slots) as server, make() as client:
        sends = [
            client.send(
                to(server, bytes((1, 70_000, 300_000)[number % 3]), header=str(number).encode()),
                acknowledge=number % 2 == 0,
            )
            for number in range(60)
        ]
        await within(asyncio.gather(*sends))
        await until(lambda: len(begun) == 60, "60 messages")
    assert begun == list(range(60))


@pytest.mark.asyncio
async def test_a_failure_does_not_hold_up_later_messages(caplog: pytest.LogCaptureFixture) -> None:
    """After one message failed those behind it are handled all the same."""
    begun: list[bytes] = []

    def handler(message: Received[bytes]) -> None:
        begun.append(message.data)
        if message.data == b"1":
            raise ValueError

    async with make(handler) as server, make() as client:
        sends = [client.send(to(server, str(number).encode())) for number in range(3)]
        results = await within(asyncio.gather(*sends, return_exceptions=True))
    assert begun == [b"0", b"1", b"2"]
    assert [type(result).__name__ for result in results] == ["NoneType", "HandlerFailed", "NoneType"]


# Slots


@pytest.mark.asyncio
@pytest.mark.parametrize(("acknowledge", "expected"), [(True, 1), (False, 16)])
async def test_slots_default_to_the_mode(acknowledge: bool, expected: int) -> None:
    """A node that acknowledges handles one message of a peer at a time by default, another sixteen."""
    inbox = Inbox(hold=True)
    async with make(inbox, acknowledge=acknowledge) as server, make() as client:
        sends = [client.send(to(server)) for _ in range(40)]
        await inbox.holds(expected)
        await turns()
        assert (inbox.running, server.stats().slots_used) == (expected, expected)
        inbox.gate.set()
        await within(asyncio.gather(*sends))
    assert inbox.most == expected


@pytest.mark.asyncio
async def test_both_links_of_a_peer_share_its_slots() -> None:
    """Two links of one peer never run more handlers than the peer has slots."""
    inbox = Inbox(hold=True)
    async with make(inbox, slots=2) as server, raw_listener() as listener:
        async with (
            raw_dialling(server, port=listener.port, redpoll=False) as one,
            raw_dialling(server, port=listener.port, redpoll=False) as two,
        ):
            await until(lambda: len(server.peers) == 1 and server.stats().connections == 2, "two links of one peer")
            for number in range(4):
                for link in (one, two):
                    link.send(link.message(str(number).encode()))
            await until(lambda: server.stats().received == 8, "all messages")
            await turns()
            assert (inbox.running, inbox.most) == (2, 2)
            inbox.gate.set()
            for link in (one, two):
                for _ in range(4):
                    assert (await link.read_frame()).kind == ACK
    assert inbox.most == 2


@pytest.mark.asyncio
async def test_peers_have_slots_of_their_own() -> None:
    """One peer's busy handler does not hold up another peer's."""
    inbox = Inbox(hold=True)
    async with make(inbox, slots=1) as server, make() as one, make() as two:
        sends = [one.send(to(server)), one.send(to(server)), two.send(to(server))]
        await inbox.holds(2)
        assert {message.remote_identity for message in inbox.messages} == {one.identity, two.identity}
        inbox.gate.set()
        await within(asyncio.gather(*sends))


@pytest.mark.asyncio
async def test_the_node_has_slots_over_all_peers() -> None:
    """node_slots bounds the handlers of all peers together."""
    inbox = Inbox(hold=True)
    async with make(inbox, slots=10, node_slots=3) as server, make() as one, make() as two:
        sends = [node.send(to(server)) for node in (one, two) for _ in range(10)]
        await inbox.holds(3)
        await until(lambda: server.stats().received == 20, "all messages")
        await turns()
        assert inbox.running == 3
        inbox.gate.set()
        await within(asyncio.gather(*sends))
    assert inbox.most == 3


@pytest.mark.asyncio
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("slots", [1, 10])
async def test_the_nodes_slots_are_shared_fairly(asynchronous: bool, slots: int) -> None:
    """Where the node's slots are short peers take turns: one that sends much does not keep another waiting."""
    order: list[bytes | None] = []
    open_ = asyncio.Event()

    async def later(message: Received[bytes]) -> None:
        order.append(message.remote_identity)
        await open_.wait()
        await asyncio.sleep(0)

    def by_hand(message: Received[bytes]) -> Any:
        return later(message)

    async with make(later if asynchronous else by_hand, slots=slots, node_slots=1) as server:
        async with make() as one, make() as two:
            sends = [one.send(to(server)) for _ in range(20)]
            await until(lambda: server.stats().received == 20, "the first peer's messages")
            sends += [two.send(to(server)) for _ in range(20)]
            await until(lambda: server.stats().received == 40, "the second peer's messages")
            open_.set()
            await within(asyncio.gather(*sends))
            middle = order[1:31]
            assert abs(middle.count(one.identity) - middle.count(two.identity)) <= 2, order


@pytest.mark.asyncio
async def test_a_busy_plain_handler_lets_other_peers_have_their_turn() -> None:
    """Plain handlers of one peer's many messages do not run to their end while another peer's wait."""
    order: list[bytes | None] = []

    def handler(message: Received[bytes]) -> None:
        order.append(message.remote_identity)

    async with make(handler, window=5000) as server, make() as one, make() as two:
        await one.send(to(server))
        await two.send(to(server))
        order.clear()
        sends = [node.send(to(server)) for node in (one, two) for _ in range(2000)]
        await within(asyncio.gather(*sends))
        first_of_two = order.index(two.identity)
        assert first_of_two < 1999, "the first peer's messages were all handled before the second's first"


# Window


@pytest.mark.asyncio
@pytest.mark.parametrize(("options", "expected"), [({}, 64), ({"slots": 100}, 100), ({"window": 3}, 3)])
async def test_the_window_bounds_what_is_unreleased(options: dict[str, int], expected: int) -> None:
    """A peer has at most the window's messages there: 64 by default, slots where these are more."""
    inbox = Inbox(hold=True)
    async with make(inbox, **options) as server, make() as client:
        await client.ready(server.address)
        sends = [client.send(to(server)) for _ in range(150)]
        await until(lambda: server.stats().received == expected, "a window of messages")
        await turns()
        stats = client.stats()
        assert (stats.in_flight, stats.queued, server.stats().received) == (expected, 150 - expected, expected)
        inbox.gate.set()
        await within(asyncio.gather(*sends))
        assert (client.stats().in_flight, client.stats().queued) == (0, 0)


@pytest.mark.asyncio
@pytest.mark.parametrize("acknowledge", [True, False])
async def test_the_window_bounds_bytes(acknowledge: bool) -> None:
    """A peer has at most window_bytes there, and every message counts, acknowledged or not."""
    inbox = Inbox(hold=True)
    async with make(inbox, window_bytes=128 * 1024) as server, make(acknowledge=acknowledge) as client:
        await client.ready(server.address)
        sends = [client.send(to(server, bytes(60_000))) for _ in range(6)]
        await until(lambda: server.stats().received == 2, "two messages")
        await turns()
        assert client.stats().queued == 4
        inbox.gate.set()
        await within(asyncio.gather(*sends))
        await until(lambda: server.stats().received == 6, "all messages")


@pytest.mark.asyncio
async def test_one_message_of_any_size_fits_the_window() -> None:
    """A message above window_bytes is sent when it is the only one there."""
    inbox = Inbox()
    async with make(inbox, window_bytes=64 * 1024) as server, make() as client:
        await within(asyncio.gather(*(client.send(to(server, bytes(500_000))) for _ in range(3))))
    assert [len(data) for data in inbox.begun] == [500_000] * 3


@pytest.mark.asyncio
async def test_unacknowledged_messages_count_in_the_window() -> None:
    """Places of unacknowledged messages come back when these are released, not when they are written."""
    inbox = Inbox(hold=True)
    async with make(inbox, window=8, slots=1) as server, make(acknowledge=False) as client:
        await client.ready(server.address)
        sends = [client.send(to(server)) for _ in range(20)]
        await until(lambda: server.stats().received == 8, "a window of messages")
        await turns()
        assert (client.stats().queued, server.stats().received) == (12, 8)
        inbox.gate.set()
        await within(asyncio.gather(*sends))
        await until(lambda: len(inbox.ended) == 20, "all messages")


@pytest.mark.asyncio
async def test_each_message_is_acknowledged_when_it_is_done() -> None:
    """With several slots a message that is done early is confirmed before those that began before it."""
    gates: dict[bytes, asyncio.Event] = {name: asyncio.Event() for name in (b"a", b"b")}

    async def handler(message: Received[bytes]) -> None:
        await gates[message.data].wait()

    async with make(handler, slots=2) as server, make() as client:
        first, second = client.send(to(server, b"a")), client.send(to(server, b"b"))
        gates[b"b"].set()
        await within(second)
        assert not first.done()
        gates[b"a"].set()
        await within(first)


# Never waiting for a slot or a place


@pytest.mark.asyncio
@pytest.mark.parametrize("slots", [(1, 1), (1, 4), (4, 1)])
@pytest.mark.parametrize("how", ["send", "request"])
async def test_a_handler_may_call_back_the_peer_it_serves(slots: tuple[int, int], how: str) -> None:
    """A handler that sends to, or asks, the node it serves gets its end, with one slot on either side."""
    served: list[bytes] = []

    async def front(message: Received[bytes]) -> bytes:
        served.append(message.data)
        return b"from the front"

    async def back(message: Received[bytes]) -> bytes:
        question = message.reply(b"callback")
        if how == "send":
            await message.node.send(question)
            return b"done"
        answer: Received[bytes] = await message.node.request(question)
        return answer.data

    async with make(back, slots=slots[0]) as server, make(front, slots=slots[1]) as client:
        for _ in range(5):
            answer = await within(client.request(to(server)))
            assert answer.data == (b"done" if how == "send" else b"from the front")
    assert served == [b"callback"] * 5


@pytest.mark.asyncio
async def test_both_sides_may_call_back_at_once() -> None:
    """Two nodes whose handlers ask each other, each with one slot and a window of one, come to an end."""

    async def handler(message: Received[bytes]) -> bytes:
        depth = int(message.data)
        if depth == 0:
            return b"bottom"
        if message.header:
            return b"no further"
        answer: Received[bytes] = await message.node.request(message.reply(b"0", header=b"x"))
        return answer.data

    async with make(handler, slots=1, window=2) as one, make(handler, slots=1, window=2) as two:
        answers = await within(asyncio.gather(one.request(to(two, b"1")), two.request(to(one, b"0"))))
        assert [answer.data for answer in answers] == [b"bottom", b"bottom"]


@pytest.mark.asyncio
async def test_answers_wait_for_no_window_place() -> None:
    """While the asker's inbox is full, answers to its requests still come."""
    asked = Inbox(hold=True)
    served = Inbox(answer=b"answer")
    async with make(served) as server, make(asked, window=2) as client:
        await client.send(to(server))
        jam = [server.send(to(client)) for _ in range(10)]
        await until(lambda: client.stats().received == 2, "a full inbox")
        for _ in range(5):
            assert (await within(client.request(to(server)))).data == b"answer"
        assert not any(send.done() for send in jam)
        asked.gate.set()
        await within(asyncio.gather(*jam))


@pytest.mark.asyncio
async def test_acknowledgements_wait_for_no_window_place() -> None:
    """While both inboxes are full, each side's releases still reach the other."""
    one_inbox, two_inbox = Inbox(hold=True), Inbox(hold=True)
    async with make(one_inbox, window=1) as one, make(two_inbox, window=1) as two:
        await within(asyncio.gather(one.ready(two.address), two.ready(one.address)))
        there = [one.send(to(two)) for _ in range(5)]
        back = [two.send(to(one)) for _ in range(5)]
        await one_inbox.holds(1)
        await two_inbox.holds(1)
        one_inbox.gate.set()
        await within(asyncio.gather(*back))
        assert not there[0].done()
        two_inbox.gate.set()
        await within(asyncio.gather(*there))


@pytest.mark.asyncio
async def test_behind_an_overrunning_libchirp_sender_acknowledgements_pass() -> None:
    """A full node reads on from a libchirp peer, so that the acknowledgement its handler waits for is seen."""
    sent = asyncio.Event()

    async def handler(message: Received[bytes]) -> None:
        if message.data == b"0":
            sending = message.node.send(message.reply(b"callback"))
            sent.set()
            await sending

    async with make(handler, slots=1) as server, raw_listener() as listener:
        async with raw_dialling(server, port=listener.port, redpoll=False) as link:
            messages = [link.message(str(number).encode()) for number in range(20)]
            for message in messages:
                link.send(message)
            callback = await link.read_frame()
            assert (callback.data, callback.kind) == (b"callback", REQ_ACK)
            link.acknowledge(callback)
            acknowledged = [await link.read_frame() for _ in messages]
            assert [frame.identity for frame in acknowledged] == [message.identity for message in messages]


@pytest.mark.asyncio
async def test_a_node_stops_reading_behind_the_lookahead() -> None:
    """Of a libchirp sender that overruns a full node no more is read than the lookahead, and it goes on afterwards."""
    inbox = Inbox(hold=True)
    async with make(inbox, slots=1, lookahead=200_000) as server, raw_listener() as listener:
        async with raw_dialling(server, port=listener.port, redpoll=False) as link:
            frames = [link.message(bytes(50_000), kind=0) for _ in range(300)]
            writing = asyncio.create_task(link.write_all(b"".join(frame.encode() for frame in frames)))
            await inbox.holds(1)
            await until(lambda: server.stats().received >= 4, "the lookahead to fill")
            before = -1
            while before != server.stats().received:
                before = server.stats().received
                await turns(50)
            assert before < 40
            assert not writing.done()
            inbox.gate.set()
            await within(writing)
            await until(lambda: len(inbox.ended) == 300, "all messages")


# Reconnecting


async def windows_told(link: RawLink) -> tuple[int, int]:
    """The window in the first bytes of a node, and the one that it tells once it knows whose the link is."""
    link.write(handshake(0, b"I" * 16) + announcement().encode())
    await link.read(18)
    first, second = [Announcement.decode((await link.read_frame()).identity, 0) for _ in range(2)]
    assert first is not None
    assert second is not None
    return first.window, second.window


@pytest.mark.asyncio
async def test_reconnecting_admits_no_more_than_the_window() -> None:
    """While messages of a lost link are open a node admits nothing until it knows whose a link is, and then the rest."""
    inbox = Inbox(hold=True)
    async with make(inbox, slots=1, window=5) as server:
        async with raw_dialling(server, port=0) as link:
            for _ in range(3):
                link.send(link.message())
            await inbox.holds(1)
            await until(lambda: server.stats().received == 3, "three messages")
        await until(lambda: not server.stats().connections, "the end of the link")
        link = await RawLink.dial("127.0.0.1", server.address.port)
        try:
            assert await windows_told(link) == (0, 2)
        finally:
            link.close()
        inbox.gate.set()
