"""Taking messages from a node without a handler: blocks, who shares, what nobody takes."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest

from redpoll import (
    Cancelled,
    Closed,
    Config,
    HandlerFailed,
    NoHandler,
    Received,
    Refused,
    Undecodable,
    UsageError,
)
from redpoll.node.iteration import Batches, Messages
from redpoll.serializers import RawSerializer
from tests.interop.raw import REQ_ACK
from tests.node.support import elapse, make, raw_dialling, settle, to, turns, until, within

# take and receive


@pytest.mark.asyncio
async def test_take_releases_on_leaving() -> None:
    """`async with node.take()` gives a message in a slot, and releases it at the end of the block."""
    async with make() as server, make() as client:
        sending = client.send(to(server, b"data", header=b"h"))
        async with server.take(timeout=5) as message:
            assert isinstance(message, Received)
            assert (message.data, message.header) == (b"data", b"h")
            assert server.stats().slots_used == 1
            await turns()
            assert not sending.done()
        await within(sending)
        assert message.ended
        assert message.data == b"data", "the data stays"
        assert server.stats().slots_used == 0


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("error", "kind"), [(ValueError("no good"), HandlerFailed), (asyncio.CancelledError(), Cancelled)]
)
async def test_take_refuses_on_an_exception(error: BaseException, kind: type[Refused]) -> None:
    """An exception that leaves the block refuses the message, and goes on."""
    async with make() as server, make() as client:
        sending = client.send(to(server))
        with pytest.raises(type(error)):
            async with server.take():
                raise error
        with pytest.raises(kind):
            await within(sending)


@pytest.mark.asyncio
async def test_a_taken_message_may_be_ended_inside() -> None:
    """What was released or refused inside the block is not ended again by leaving it."""
    async with make() as server, make() as client:
        first, second = client.send(to(server)), client.send(to(server))
        async with server.take() as message:
            message.release()
            await within(first)

        async def refuse_and_raise() -> None:
            async with server.take() as message:
                message.refuse("mine")
                raise ValueError("later")

        with pytest.raises(ValueError, match="later"):
            await refuse_and_raise()
        with pytest.raises(Refused, match="mine"):
            await within(second)


@pytest.mark.asyncio
async def test_take_ends_with_its_timeout() -> None:
    """Where nothing comes, entering the block raises TimeoutError, and so does receive."""
    async with make() as server:
        with pytest.raises(TimeoutError) as caught:
            async with server.take(timeout=0.01):
                raise AssertionError("nothing was there")
        assert str(caught.value) == "no message arrived within 0.01 s"
        with pytest.raises(TimeoutError):
            await server.receive(0.01)
        with pytest.raises(TimeoutError):
            await server.receive(0)


@pytest.mark.asyncio
async def test_a_timeout_of_zero_takes_what_is_there() -> None:
    """With timeout=0 a message that waits is taken, without waiting for one."""
    async with make() as server, make() as client:
        sending = client.send(to(server))
        await until(lambda: server.stats().received == 1, "the message")
        (await server.receive(0)).release()
        await within(sending)


@pytest.mark.asyncio
async def test_receive_leaves_the_end_to_its_caller() -> None:
    """A received message keeps its slot until it is released."""
    async with make() as server, make() as client:
        sending = client.send(to(server))
        message = await within(server.receive())
        await turns()
        assert not sending.done()
        message.release()
        await within(sending)


@pytest.mark.asyncio
async def test_a_received_message_is_a_context() -> None:
    """`async with message`, and `with message`, release on leaving and refuse on an exception."""
    async with make() as server, make() as client:
        sends = [client.send(to(server)) for _ in range(3)]
        async with await within(server.receive()):
            pass
        await within(sends[0])
        with await within(server.receive()):
            pass
        await within(sends[1])
        with pytest.raises(ValueError, match="no good"):
            async with await within(server.receive()):
                raise ValueError("no good")
        with pytest.raises(HandlerFailed, match="ValueError: no good"):
            await within(sends[2])


@pytest.mark.asyncio
async def test_a_cancelled_receive_loses_no_message() -> None:
    """A message that came for a receive that was cancelled goes to the next."""
    async with make() as server, make() as client:
        for number in range(30):
            waiting = asyncio.create_task(server.receive())
            other = asyncio.create_task(server.receive())
            await turns(3)
            sending = client.send(to(server))
            await until(lambda: client.stats().in_flight == 1, "the message to be written")
            await turns(number)
            waiting.cancel()
            await settle(waiting)
            if waiting.cancelled():
                (await within(other)).release()
            else:
                waiting.result().release()
                other.cancel()
                await settle(other)
            await within(sending)


@pytest.mark.asyncio
async def test_several_consumers_share_the_messages() -> None:
    """Consumers that wait at the same time each get messages of their own, as many as slots allow."""
    async with make(slots=4) as server, make() as client:
        waiting = [asyncio.create_task(server.receive()) for _ in range(4)]
        await turns()
        sends = [client.send(to(server, str(number).encode())) for number in range(8)]
        messages = await within(asyncio.gather(*waiting))
        assert sorted(message.data for message in messages) == [b"0", b"1", b"2", b"3"]
        late = asyncio.create_task(server.receive())
        await turns()
        assert not late.done(), "all slots are taken"
        messages[2].release()
        assert (await within(late)).data == b"4"
        for message in (*messages, late.result()):
            message.release()
        for _ in range(3):
            (await within(server.receive())).release()
        await within(asyncio.gather(*sends))


@pytest.mark.asyncio
async def test_a_consumer_whose_time_ends_with_an_arrival_passes_the_news_on() -> None:
    """Two messages that come at the end of one consumer's time go to two consumers, though only that one was woken."""
    async with make(slots=2) as server, make(acknowledge=False) as client:
        await within(client.ready(server.address))
        first = asyncio.ensure_future(server.receive(timeout=0.05))
        second = asyncio.ensure_future(server.receive(timeout=None))
        await turns()
        client.send(to(server))
        client.send(to(server))
        for connection in client._peers.connections:
            connection.flush()
        # Nothing is read until the time is over: the next turn of the loop has both.
        over = time.monotonic() + 0.1
        while time.monotonic() < over:
            pass
        messages = await within(asyncio.gather(first, second))
        for message in messages:
            message.release()


@pytest.mark.asyncio
async def test_a_slot_of_the_node_wakes_any_consumer() -> None:
    """With all of the node's slots taken a consumer waits, and gets another peer's message when one comes free."""
    async with make(node_slots=1) as server, make() as one, make() as two:
        first = one.send(to(server, b"one"))
        held = await within(server.receive())
        second = two.send(to(server, b"two"))
        await until(lambda: server.stats().received == 2, "the second message")
        waiting = asyncio.create_task(server.receive())
        await turns()
        assert not waiting.done()
        held.release()
        (await within(waiting)).release()
        await within(asyncio.gather(first, second))


@pytest.mark.asyncio
async def test_peers_take_turns() -> None:
    """Messages of several peers are pulled in turn, each peer's in their order."""
    async with make(slots=8) as server, make() as one, make() as two:
        sends = [one.send(to(server, b"one %d" % number)) for number in range(4)]
        await until(lambda: server.stats().received == 4, "the first peer's")
        sends += [two.send(to(server, b"two %d" % number)) for number in range(4)]
        await until(lambda: server.stats().received == 8, "the second peer's")
        order = []
        for _ in range(8):
            async with server.take() as message:
                order.append(message.data)
        await within(asyncio.gather(*sends))
    assert [data for data in order if data.startswith(b"one")] == [b"one 0", b"one 1", b"one 2", b"one 3"]
    assert [data for data in order if data.startswith(b"two")] == [b"two 0", b"two 1", b"two 2", b"two 3"]
    assert {data[:3] for data in order[:2]} == {b"one", b"two"}


@pytest.mark.asyncio
async def test_what_cannot_be_decoded_is_not_pulled(caplog: pytest.LogCaptureFixture) -> None:
    """Bytes that the serializer cannot read are refused, and the next message is taken instead."""
    async with make(serializer="json") as server, make(serializer=RawSerializer("any")) as client:
        bad, good = client.send(to(server, b"{no json")), client.send(to(server, b"[1]"))
        async with server.take() as message:
            assert message.data == [1]
        await within(good)
        with pytest.raises(Undecodable):
            await within(bad)
        bad, good = client.send(to(server, b"{no json")), client.send(to(server, b"[2]"))
        batches = aiter(server.batches())
        batch = await within(anext(batches))
        assert [message.data for message in batch] == [[2]]
        with pytest.raises(Undecodable):
            await within(bad)
        batch[0].release()
        await within(good)


# auto_release


@pytest.mark.asyncio
@pytest.mark.parametrize("way", ["one", "batch"])
async def test_what_cannot_be_decoded_does_not_block_the_loop(way: str) -> None:
    """A consumer passes over a few hundred such messages in a turn of the loop, and gets the one behind them."""
    any_bytes = RawSerializer("any")
    async with make(window=2000, slots=100, serializer="json") as server, make(serializer=any_bytes) as client:
        bad = (to(server, b"{") for _ in range(1500))
        await within(client.send_many(bad, acknowledge=False))
        await within(client.send(to(server, b"1"), acknowledge=False))
        await until(lambda: server.stats().received == 1501, "all")
        batches = aiter(server.batches())
        taking: asyncio.Future[Any] = asyncio.ensure_future(server.receive() if way == "one" else anext(batches))
        most = refused = 0
        while not taking.done():
            await asyncio.sleep(0)
            before, refused = refused, server.stats().refused
            most = max(most, refused - before)
        taken = await taking
        for message in [taken] if way == "one" else taken:
            assert message.data == 1
            message.release()
        assert (refused, most < 600) == (1500, True)


@pytest.mark.asyncio
async def test_get_releases_on_pulling() -> None:
    """With auto_release="get" a message is released when it is taken, in every way of pulling."""
    async with make(auto_release="get") as server, make() as client:
        sends = [client.send(to(server, str(number).encode())) for number in range(4)]
        message = await within(server.receive())
        assert message.ended
        async with server.take() as message:
            assert message.ended
        async for message in server:
            assert message.ended
            break
        async for batch in server.batches():
            assert all(message.ended for message in batch)
            break
        await within(asyncio.gather(*sends))


@pytest.mark.asyncio
async def test_without_auto_release_nothing_ends_by_itself() -> None:
    """With auto_release=False leaving a block or a loop ends nothing, and warns of nothing."""
    held: list[Received[Any]] = []
    async with make(auto_release=False, slots=10) as server, make() as client:
        sends = [client.send(to(server)) for _ in range(5)]
        async with server.take() as message:
            held.append(message)
        held.append(await within(server.receive()))
        async for message in server:
            held.append(message)
            if len(held) == 4:
                break
        async for batch in server.batches():
            held += batch
            break
        await turns()
        assert not any(sending.done() for sending in sends)
        assert server.stats().slots_used == 5
        for message in held:
            message.release()
        await within(asyncio.gather(*sends))


# Who may pull


@pytest.mark.asyncio
async def test_a_node_with_a_handler_is_not_pulled_from() -> None:
    """Every way of pulling from a node with a handler is a UsageError."""
    async with make(lambda message: None) as server:
        for pull in (server.take, server.batches, lambda: aiter(server)):
            with pytest.raises(UsageError) as caught:
                pull()
            assert str(caught.value) == (
                "this node has a handler, which receives its messages (create the node without a handler)"
            )
        with pytest.raises(UsageError, match="this node has a handler"):
            await server.receive()


@pytest.mark.asyncio
async def test_a_node_that_was_not_started_is_not_pulled_from() -> None:
    """Before its start a node is not running, for every way of pulling."""
    server = make()
    for pull in (server.take, server.batches, lambda: aiter(server)):
        with pytest.raises(Closed):
            pull()
    with pytest.raises(Closed):
        await server.receive()


@pytest.mark.asyncio
@pytest.mark.parametrize("timeout", ["1", True, -1, float("nan")])
async def test_a_timeout_that_is_none_is_refused(timeout: Any) -> None:
    """A timeout that is no time is a UsageError, in take and receive."""
    async with make() as server:
        with pytest.raises(UsageError, match="timeout"):
            await server.receive(timeout)
        with pytest.raises(UsageError, match="timeout"):
            server.take(timeout)


@pytest.mark.asyncio
@pytest.mark.parametrize("options", [{}, {"timeout": 0.02}])
async def test_an_unset_timeout_of_a_pull_is_the_configs(options: dict[str, Any]) -> None:
    """Without a timeout `receive` and `take` wait as long as the Config says, and the error names the time."""
    async with make(timeout=60.0 if options else 0.02) as server:
        with pytest.raises(TimeoutError, match=r"no message arrived within 0\.02 s"):
            await within(server.receive(**options))
        with pytest.raises(TimeoutError, match=r"no message arrived within 0\.02 s"):
            async with server.take(**options):
                pass


@pytest.mark.asyncio
async def test_a_pull_without_a_limit_waits() -> None:
    """With a timeout of None a pull waits longer than the Config says."""
    async with make(timeout=0.02) as server, make() as client:
        receiving = asyncio.ensure_future(server.receive(None))
        await elapse(0.06)
        assert not receiving.done()
        sending = client.send(to(server))
        (await within(receiving)).release()
        await within(sending)


# Messages that nobody takes


@pytest.mark.asyncio
async def test_what_nobody_takes_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """Without a handler and a consumer messages are refused as NoHandler after unclaimed_timeout, with a warning."""
    async with make(unclaimed_timeout=0.05) as server, make() as client:
        for call in (client.send, client.request):
            sends = [call(to(server), timeout=None) for _ in range(3)]
            for sending in sends:
                with pytest.raises(NoHandler) as caught:
                    await within(sending)
                assert caught.value.sent is False, "it was not begun: safe to send again"
                assert str(caught.value) == (
                    f"message to {server.address} was refused: unclaimed: the node has neither a"
                    " handler nor a consumer (give that node a handler, or pull from it within its unclaimed_timeout)"
                )
        assert server.stats().refused == 6
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert told
    assert told[0].endswith("that were not taken within 0.05 s: the node has neither a handler nor a consumer")
    assert {record.name for record in caplog.records} == {"redpoll.node"}


def test_a_sender_learns_that_nobody_takes_messages_before_its_own_time_is_over() -> None:
    """By default a message that nobody takes is refused well before the default timeout of its sender."""
    timeout = Config().timeout
    assert timeout is not None
    assert Config().unclaimed_timeout <= timeout / 2


@pytest.mark.asyncio
async def test_unacknowledged_messages_that_nobody_takes_give_their_places_back() -> None:
    """Unacknowledged messages that nobody takes do not fill the window for good."""
    async with make(unclaimed_timeout=0.02, window=4) as server, make(acknowledge=False) as client:
        await within(asyncio.gather(*(client.send(to(server), timeout=None) for _ in range(10))))
        await until(lambda: server.stats().refused == 10, "ten refusals")


@pytest.mark.asyncio
async def test_what_is_taken_in_time_is_not_refused() -> None:
    """A message that is taken before unclaimed_timeout is over ends as its taker says, however late."""
    async with make(unclaimed_timeout=0.05) as server, make() as client:
        sending = client.send(to(server), timeout=None)
        message = await within(server.receive())
        await elapse(0.1)
        assert not sending.done()
        message.release()
        await within(sending)


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["receive", "take", "loop", "batches"])
async def test_what_waits_behind_a_slow_consumer_is_not_refused(how: str) -> None:
    """While a consumer works on a message those behind it wait, however long: somebody takes them."""
    async with make(unclaimed_timeout=0.2) as server, make() as client:
        first = client.send(to(server), timeout=None)
        sends = [first]

        async def work() -> None:
            if len(sends) == 1:
                # Only now, when somebody is at work: before, how long they wait would be up to the machine.
                sends.extend(client.send(to(server), timeout=None) for _ in range(2))
                await until(lambda: server.stats().received == 3, "all messages")
            await elapse(0.5)

        if how == "receive":
            for _ in range(3):
                message = await within(server.receive())
                await work()
                message.release()
        elif how == "take":
            for _ in range(3):
                async with server.take():
                    await work()
        elif how == "loop":
            done = 0
            async for message in server:
                await work()
                done += 1
                if done == 3:
                    message.release()
                    break
        else:
            done = 0
            async for batch in server.batches():
                await work()
                done += len(batch)
                if done == 3:
                    batch[-1].release()
                    break
        await within(asyncio.gather(*sends))
        assert server.stats().refused == 0


@pytest.mark.asyncio
async def test_a_consumer_that_released_early_still_counts() -> None:
    """A consumer that releases on pulling and then works takes what waits when it is back within unclaimed_timeout."""
    async with make(unclaimed_timeout=1.0, auto_release="get") as server, make() as client:
        sends = [client.send(to(server), timeout=None) for _ in range(4)]
        await until(lambda: server.stats().received == 4, "all messages")
        for _ in sends:
            await elapse(0.3)
            await within(server.receive())
        await within(asyncio.gather(*sends))
        assert server.stats().refused == 0


@pytest.mark.asyncio
async def test_a_consumer_that_left_no_longer_counts(caplog: pytest.LogCaptureFixture) -> None:
    """When the last consumer is gone, what comes afterwards is refused after unclaimed_timeout."""
    async with make(unclaimed_timeout=0.03) as server, make() as client:
        first = client.send(to(server))
        async with server.take():
            pass
        await within(first)
        with pytest.raises(NoHandler):
            await within(client.send(to(server), timeout=None))


@pytest.mark.asyncio
async def test_a_libchirp_message_that_nobody_takes_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """A libchirp sender cannot be told: it gets no acknowledgement for what nobody takes."""
    async with make(unclaimed_timeout=0.02) as server, raw_dialling(server, port=0, redpoll=False) as link:
        link.send(link.message(b"x", kind=REQ_ACK))
        await until(lambda: server.stats().refused == 1, "the refusal")
        assert await link.silent(0.02)


@pytest.mark.asyncio
async def test_the_iterators_are_what_they_say() -> None:
    """`async for` over a node, and over batches, each iterate over themselves."""
    async with make() as server:
        loop, batches = aiter(server), aiter(server.batches())
        assert isinstance(loop, Messages)
        assert isinstance(batches, Batches)
        assert aiter(loop) is loop
        assert aiter(batches) is batches
