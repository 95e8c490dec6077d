"""Who pulls gets what waits as soon as there is a slot; what nobody pulls is refused after its time."""

from __future__ import annotations

import asyncio
import gc
import logging

import pytest

from redpoll import NoHandler, Received
from tests.node.support import elapse, make, settle, to, turns, until, within

pytestmark = pytest.mark.asyncio


async def test_slot_of_the_node_goes_to_another_peer() -> None:
    """Who waited while another peer's message held the node's only slot gets the next one when that ends."""
    async with make(node_slots=1) as server, make() as one, make() as other:
        first = one.send(to(server))
        held = await within(server.receive())
        second = other.send(to(server, b"second"))
        waiting = asyncio.ensure_future(server.receive())
        await until(lambda: server.stats().received == 2, "the second message")
        await turns()
        assert not waiting.done()
        held.release()
        message = await within(waiting)
        assert message.data == b"second"
        message.release()
        await settle(first, second)


async def test_slots_of_a_released_batch_go_to_another_peer() -> None:
    """A batch gives all its slots back at once, and who waited for one gets it beside the next batch."""
    async with make(slots=4, node_slots=3) as server, make() as one, make() as two, make() as three:
        sends = [one.send(to(server)) for _ in range(3)]
        await until(lambda: server.stats().received == 3, "three messages")
        batches = server.batches()
        assert len(await within(anext(batches))) == 3
        sends += [two.send(to(server)), three.send(to(server))]
        waiting = asyncio.ensure_future(server.receive())
        await until(lambda: server.stats().received == 5, "the messages of the others")
        await turns()
        assert not waiting.done()
        batch = await within(anext(batches))
        message: Received[bytes] = await within(waiting)
        assert len(batch) == 1
        assert batch[0].address != message.address
        batch[0].release()
        message.release()
        await settle(*sends)


async def test_consumer_at_work_claims_what_waits() -> None:
    """What waits while a consumer works longer than the timeout, on a message of whomever, is not refused."""
    async with make(unclaimed_timeout=0.2) as server, make() as one, make() as other:
        sends = [one.send(to(server))]
        async with server.take():
            sends += [one.send(to(server)), other.send(to(server))]
            await until(lambda: server.stats().received == 3, "the messages")
            await elapse(0.5)
        for _ in range(2):
            async with server.take(2):
                pass
        await settle(*sends)
        assert [send.exception() for send in sends] == [None, None, None]


async def test_what_a_consumer_leaves_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """A consumer that takes one message and no more claims the others for one timeout more, not for ever."""
    async with make(unclaimed_timeout=0.05) as server, make() as client:
        waiting = asyncio.ensure_future(server.receive())
        await turns()
        sends = [client.send(to(server)) for _ in range(5)]
        (await within(waiting)).release()
        with caplog.at_level(logging.WARNING, "redpoll.node"):
            await settle(*sends)
        assert sends[0].exception() is None
        assert all(isinstance(send.exception(), NoHandler) for send in sends[1:])
        assert "messages that were not taken within 0.05 s" in caplog.text
        assert client.stats().refused_by_peer == 4


async def test_answers_do_not_hide_what_waits() -> None:
    """Messages of a peer that also answers are refused in their time like others."""
    async with make(lambda message: b"answer") as other, make(unclaimed_timeout=0.05) as server:
        await within(server.request(to(other)))
        send = other.send(to(server))
        await until(lambda: server.stats().received == 2, "the message")
        for _ in range(3):
            await within(server.request(to(other)))
        await settle(send)
        assert isinstance(send.exception(), NoHandler)


async def test_withdrawn_message_does_not_hide_what_waits() -> None:
    """What waits beside a message that its sender withdrew is refused all the same."""
    async with make(unclaimed_timeout=0.05) as server, make() as client:
        sends = [client.send(to(server)) for _ in range(3)]
        await until(lambda: server.stats().received == 3, "the messages")
        sends[2].cancel()
        await settle(*sends[:2])
        assert [type(send.exception()) for send in sends[:2]] == [NoHandler, NoHandler]


async def test_taken_messages_are_not_kept() -> None:
    """A message that was taken and let go is gone before the time for unclaimed ones is over."""
    async with make(unclaimed_timeout=60) as server, make() as client:
        for number in range(3):
            send = client.send(to(server, b"body of its own"))
            await until(lambda: server.stats().received > number, "the message")  # noqa: B023
            async with server.take(2):
                pass
            await within(send)
        gc.collect()
        assert not [each for each in gc.get_objects() if isinstance(each, Received)]


@pytest.mark.parametrize("how", ["messages", "batches"])
async def test_what_a_loop_leaves_behind_is_refused(how: str) -> None:
    """When the last loop is left, the time of what still waits begins; it is refused, not kept for ever."""
    async with make(unclaimed_timeout=0.05) as server, make(timeout=None) as client:
        sends = [client.send(to(server)) for _ in range(4)]
        if how == "messages":
            async for message in server:
                message.release()
                break
        else:
            async for batch in server.batches():
                batch[0].release()
                break
        await settle(*sends)
        assert [type(send.exception()) for send in sends] == [type(None), NoHandler, NoHandler, NoHandler]


async def test_what_one_of_two_loops_leaves_is_the_others() -> None:
    """While another loop is there, what waits is not refused."""
    async with make(unclaimed_timeout=0.02) as server, make() as client:
        staying = aiter(server)
        sends = [client.send(to(server)) for _ in range(2)]
        async for message in server:
            message.release()
            break
        await elapse(0.1)
        (await within(anext(staying))).release()
        await settle(*sends)
        assert [send.exception() for send in sends] == [None, None]
