"""Loops over a node: message by message and in batches, and what becomes of those that are left."""

from __future__ import annotations

import asyncio
import gc
import sys
import warnings
from typing import Any

import pytest

from redpoll import (
    Abandoned,
    Closed,
    Refused,
    UsageError,
)
from redpoll.wire.inbound import Arrivals
from redpoll.wire.reader import Reader
from tests.node.support import make, settle, to, turns, until, within

# async for


@pytest.mark.asyncio
async def test_a_loop_releases_with_the_next_step() -> None:
    """A message of an `async for` is released when the loop asks for the next one."""
    async with make() as server, make() as client:
        sends = [client.send(to(server, str(number).encode())) for number in range(3)]
        seen = []
        async for message in server:
            seen.append(message.data)
            index = len(seen) - 1
            await turns()
            assert not sends[index].done()
            assert all(sending.done() for sending in sends[:index])
            if index == 2:
                message.release()
                break
        await within(sends[2])
    assert seen == [b"0", b"1", b"2"]


@pytest.mark.asyncio
@pytest.mark.parametrize("acknowledge", [True, False])
async def test_a_loop_takes_messages_in_order(acknowledge: bool) -> None:
    """A loop gets all messages of a peer in their order, in both modes, through many windows."""
    async with make(window=8) as server, make(acknowledge=acknowledge) as client:
        sending = asyncio.create_task(client.send_many(to(server, b"%d" % number) for number in range(500)))
        seen = []
        async for message in server:
            seen.append(int(message.data))
            if len(seen) == 500:
                message.release()
                break
        assert await within(sending) == 500
    assert seen == list(range(500))


@pytest.mark.asyncio
async def test_messages_that_outlive_their_link_give_its_places_back() -> None:
    """Unacknowledged messages of a lost link are counted against the window of the next one until a loop has ended them."""
    async with make(window=32, slots=8) as server, make() as client:
        assert await within(client.send_many((to(server) for _ in range(20)), acknowledge=False)) == 20
        steps = aiter(server)
        message = await within(anext(steps))
        slots = message.link.peer.slots
        await until(lambda: message.link.unreleased == 20, "all messages")
        message.link.connection.transport.abort()
        await until(lambda: slots.inbox.carried == 20, "the loss of the link")
        for left in range(19, 0, -1):
            message = await within(anext(steps))
            assert slots.inbox.carried == left
        message.release()
        assert slots.inbox.carried == slots.pool.carried == 0


@pytest.mark.asyncio
async def test_unacknowledged_messages_come_in_order_and_give_their_places_back() -> None:
    """A long unacknowledged stream passes a small window, by steps and by batches."""
    async with make(window=32, slots=8) as server, make() as client:
        for batches in (False, True):
            count = 0

            async def pull(by_batches: bool) -> None:
                nonlocal count
                if by_batches:
                    async for batch in server.batches(max=5):
                        assert 1 <= len(batch) <= 5
                        assert [int(message.data) for message in batch] == list(range(count, count + len(batch)))
                        count += len(batch)
                        if count == 1000:
                            for message in batch:
                                message.release()
                            return
                else:
                    async for message in server:
                        assert int(message.data) == count
                        count += 1
                        if count == 1000:
                            message.release()
                            return

            pulling = asyncio.ensure_future(pull(batches))
            sent = await within(
                client.send_many((to(server, b"%d" % number) for number in range(1000)), acknowledge=False)
            )
            await within(pulling)
            assert (sent, count) == (1000, 1000)


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["break", "raise", "cancel"])
async def test_a_loop_that_is_left_abandons_its_last_message(how: str) -> None:
    """Left in any way but a step, a loop refuses its last message as Abandoned, and warns."""

    async def consume() -> None:
        async for _ in server:
            if how == "break":
                break
            if how == "raise":
                raise ValueError("left")
            await asyncio.Event().wait()

    async def leave() -> None:
        consuming = asyncio.create_task(consume())
        await until(lambda: consuming.done() or server.stats().slots_used, "the message")
        if how == "cancel":
            await turns()
            consuming.cancel()
        await settle(consuming)

    async with make() as server, make() as client:
        sending = client.send(to(server))
        with pytest.warns(RuntimeWarning, match="a loop over a node was left before its last message ended"):
            await leave()
        with pytest.raises(Abandoned) as caught:
            await within(sending)
        assert caught.value.sent is True
        assert "its consumer left the loop without ending it" in str(caught.value)
        assert server.stats().slots_used == 0


@pytest.mark.asyncio
async def test_a_message_is_abandoned_though_warnings_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a warning is an error the message is refused all the same."""
    raised: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: raised.append(unraisable.exc_type.__name__))
    async with make() as server, make() as client:
        sending = client.send(to(server))
        loop = aiter(server)
        await within(anext(loop))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            del loop
            gc.collect()
        with pytest.raises(Abandoned):
            await within(sending)
    assert raised == ["RuntimeWarning"]


@pytest.mark.asyncio
async def test_a_loop_may_be_left_after_its_message_ended() -> None:
    """A message that was released or refused before the break is left as it is, without a warning."""
    async with make() as server, make() as client:
        first, second = client.send(to(server)), client.send(to(server))
        async for message in server:
            message.release()
            break
        await within(first)
        async for message in server:
            message.refuse("no")
            break
        with pytest.raises(Refused, match="no"):
            await within(second)


@pytest.mark.asyncio
async def test_each_loop_has_its_own_iterator() -> None:
    """Two loops over one node share its messages, and each releases its own."""
    seen: dict[str, list[bytes]] = {"one": [], "two": []}

    async def consume(name: str) -> None:
        async for message in server:
            seen[name].append(message.data)
            await asyncio.sleep(0)

    async with make(slots=2) as server, make() as client:
        tasks = [asyncio.create_task(consume(name)) for name in seen]
        await turns()
        await within(asyncio.gather(*(client.send(to(server, b"%d" % number)) for number in range(40))))
        await within(server.stop())
        await within(asyncio.gather(*tasks))
    assert sorted(map(int, seen["one"] + seen["two"])) == list(range(40))
    assert all(seen.values())


@pytest.mark.asyncio
async def test_a_loop_ends_with_its_node() -> None:
    """When the node stops, loops and batches end, and whoever waits otherwise gets Closed."""
    seen: list[str] = []

    async def loop() -> None:
        async for _ in server:
            pass
        seen.append("loop")

    async def batches() -> None:
        async for _ in server.batches():
            pass
        seen.append("batches")

    async with make() as server:
        tasks = [asyncio.create_task(loop()), asyncio.create_task(batches())]
        receiving = asyncio.create_task(server.receive())
        await turns()
        await within(server.stop())
        await within(asyncio.gather(*tasks))
        with pytest.raises(Closed):
            await within(receiving)
        with pytest.raises(Closed) as caught:
            await server.receive()
        assert str(caught.value) == "the node is not running"
        assert sorted(seen) == ["batches", "loop"]
        assert [message async for message in server] == []


@pytest.mark.asyncio
async def test_a_step_that_is_cancelled_loses_nothing() -> None:
    """A loop whose step was cancelled goes on with the next message."""
    async with make() as server, make() as client:
        loop = aiter(server)
        step = asyncio.ensure_future(anext(loop))
        await turns()
        step.cancel()
        await settle(step)
        sending = client.send(to(server, b"x"))
        message = await within(anext(loop))
        assert message.data == b"x"
        message.release()
        await within(sending)


# batches


@pytest.mark.asyncio
@pytest.mark.parametrize("acknowledge", [True, False])
async def test_batches_give_what_is_there(acknowledge: bool) -> None:
    """A batch has the messages of one peer that wait and have a slot, up to `max`; it is released with the next."""
    async with make(slots=100) as server, make(acknowledge=acknowledge) as client:
        sends = [client.send(to(server, b"%d" % number)) for number in range(50)]
        await until(lambda: server.stats().received == 50, "all messages")
        sizes, seen = [], []
        async for batch in server.batches(max=20):
            assert server.stats().slots_used == len(batch)
            sizes.append(len(batch))
            seen += [int(message.data) for message in batch]
            if len(seen) == 50:
                for message in batch:
                    message.release()
                break
        await within(asyncio.gather(*sends))
        assert server.stats().slots_used == 0
    assert sizes == [20, 20, 10]
    assert seen == list(range(50))


@pytest.mark.asyncio
async def test_a_batch_has_no_more_than_the_slots() -> None:
    """A batch takes a slot for each message: with the default one slot it has one message."""
    async with make() as server, make() as client:
        sends = [client.send(to(server)) for _ in range(3)]
        await until(lambda: server.stats().received == 3, "all messages")
        sizes = []
        async for batch in server.batches():
            sizes.append(len(batch))
            if len(sizes) == 3:
                batch[0].release()
                break
        await within(asyncio.gather(*sends))
    assert sizes == [1, 1, 1]


@pytest.mark.asyncio
async def test_a_batch_keeps_what_was_ended_in_it() -> None:
    """Messages that were refused inside a batch stay refused; the others are released with the next step."""
    async with make(slots=10) as server, make() as client:
        sends = [client.send(to(server, b"%d" % number)) for number in range(4)]
        await until(lambda: server.stats().received == 4, "all messages")
        batches = aiter(server.batches(max=3))
        batch = await within(anext(batches))
        batch[1].refuse("not this one")
        batch[2].release()
        rest = await within(anext(batches))
        results = await within(asyncio.gather(*sends[:3], return_exceptions=True))
        assert [type(result).__name__ for result in results] == ["NoneType", "Refused", "NoneType"]
        rest[0].release()
        await within(sends[3])


@pytest.mark.asyncio
async def test_a_batch_may_be_emptied() -> None:
    """Messages that the consumer took out of the list are released with the next step too."""
    async with make(slots=10) as server, make() as client:
        sends = [client.send(to(server, b"%d" % number)) for number in range(4)]
        await until(lambda: server.stats().received == 4, "all messages")
        batches = aiter(server.batches(max=3))
        batch = await within(anext(batches))
        while batch:
            batch.pop()
        rest = await within(anext(batches))
        await within(asyncio.gather(*sends[:3]))
        rest[0].release()
        await within(sends[3])


@pytest.mark.asyncio
async def test_a_batch_that_is_left_is_abandoned() -> None:
    """Left in any way but a step, the messages of the last batch that have not ended are refused, with a warning."""
    async with make(slots=10) as server, make() as client:
        sends = [client.send(to(server)) for _ in range(3)]
        await until(lambda: server.stats().received == 3, "all messages")

        async def leave() -> None:
            async for batch in server.batches():
                batch[0].release()
                break

        with pytest.warns(
            RuntimeWarning, match="before 2 messages of its last batch ended; they were refused as Abandoned"
        ):
            await leave()
        results = await within(asyncio.gather(*sends, return_exceptions=True))
        assert [type(result).__name__ for result in results] == ["NoneType", "Abandoned", "Abandoned"]
        assert server.stats().slots_used == 0


@pytest.mark.asyncio
async def test_slots_that_come_free_together_wake_each_waiting_loop() -> None:
    """Two loops that wait for slots both get a batch when one release frees two, each of another peer."""
    async with make(slots=2, node_slots=2) as server, make() as one, make() as two, make() as three:
        sends = [one.send(to(server)) for _ in range(2)]
        await until(lambda: server.stats().received == 2, "the first two")
        holding = server.batches()
        batch = await within(anext(holding))
        assert len(batch) == 2
        sends += [two.send(to(server)), three.send(to(server))]
        await until(lambda: server.stats().received == 4, "the others")
        loops = [server.batches(), server.batches()]
        steps = [asyncio.ensure_future(anext(loop)) for loop in loops]
        await turns()
        server._peers.completion.release_many(batch)
        for (message,) in await within(asyncio.gather(*steps)):
            message.release()
        await settle(*sends)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("most", "text"),
    [
        (0, "max=0 is below the minimum of 1"),
        (-1, "max=-1 is below the minimum of 1"),
        ("10", "max must be a number of messages, not str"),
        (1.5, "max must be a number of messages, not float"),
        (None, "max must be a number of messages, not NoneType"),
    ],
)
async def test_a_batch_of_no_size_is_refused(most: Any, text: str) -> None:
    """`max` is a number from 1: else a UsageError."""
    async with make() as server:
        with pytest.raises(UsageError) as caught:
            server.batches(most)
        assert str(caught.value) == text


@pytest.mark.asyncio
async def test_a_stream_is_read_no_faster_than_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer has its turn after each full read of a stream: no loop reads again and again before that."""
    unseen = most = full = 0
    received = Reader.received

    def counted(reader: Reader, shared: memoryview, count: int, now: float) -> Arrivals:
        nonlocal unseen, most, full
        arrived = received(reader, shared, count, now)
        if reader.more_of_stream:
            full += 1
            unseen += 1
            most = max(most, unseen)
        return arrived

    monkeypatch.setattr(Reader, "received", counted)
    options: dict[str, Any] = {"acknowledge": False, "slots": 16_384, "node_slots": 16_384, "window": 16_384}
    count, seen = 50_000, 0
    async with make(**options) as server, make(acknowledge=False) as client:
        sends = [asyncio.create_task(client.send_many(to(server, b"x") for _ in range(count)))]
        async for batch in server.batches(max=count):
            unseen = 0
            seen += len(batch)
            if seen == count:
                for message in batch:
                    message.release()
                break
        assert await within(sends[0]) == count
    assert full > 1
    assert most == 1
