"""Stop: at any moment, what was begun ends, and nothing is left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from redpoll import (
    Closed,
    Config,
    Message,
    Node,
    NotConfirmed,
    NotSent,
    Received,
    Refused,
    SendError,
    ShuttingDown,
)
from tests.interop.raw import RawListener
from tests.node.support import (
    Inbox,
    make,
    raw_accepting,
    raw_dialling,
    settle,
    to,
    turns,
    until,
    within,
)
from tests.ports import free_port
from tests.transport.test_listen import dialled

BIG = bytes(range(256)) * 16_384  # 4 MiB: more than any buffer on the way holds


async def stop_with(node: Node[Any], drain: float | None, within_seconds: float) -> float:
    """Stop a node; how long that took."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    async with asyncio.timeout(within_seconds):
        await node.stop(drain=drain)
    return loop.time() - begin


@pytest.mark.asyncio
async def test_serve_forever_ends_with_the_node() -> None:
    """Whoever waits in serve_forever goes on when the node has stopped; cancelling that does not stop it."""
    node = make()
    await node.start()
    cancelled = asyncio.ensure_future(node.serve_forever())
    serving = asyncio.ensure_future(node.serve_forever())
    await turns()
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert "running" in repr(node)
    await node.stop()
    await within(serving)


@pytest.mark.asyncio
async def test_error_in_the_block_stops_at_once() -> None:
    """Leaving the block with an exception drains nothing, and the exception comes out."""
    inbox = Inbox(hold=True)
    futures: list[asyncio.Future[None]] = []
    loop = asyncio.get_running_loop()
    async with make(inbox) as server:
        begin = loop.time()
        client = make()

        async def fail() -> None:
            async with client:
                futures.append(client.send(to(server)))
                await inbox.holds(1)
                raise LookupError("on purpose")

        with pytest.raises(LookupError, match="on purpose"):
            await fail()
        assert loop.time() - begin < 4
        with pytest.raises(NotConfirmed):
            await futures[0]
        inbox.gate.set()


@pytest.mark.asyncio
async def test_handlers_end_and_are_acknowledged() -> None:
    """Stopping lets handlers end: what they worked on is acknowledged, what waited behind them is worked on too."""
    inbox = Inbox(hold=True)
    async with make() as client:
        server = make(inbox)
        await server.start()
        futures = [client.send(to(server, bytes([n]))) for n in range(5)]
        await inbox.holds(1)
        stop = asyncio.ensure_future(server.stop())
        await turns()
        assert not stop.done()
        inbox.gate.set()
        await within(stop)
        await within(asyncio.gather(*futures))
    assert inbox.ended == [bytes([n]) for n in range(5)]


@pytest.mark.asyncio
async def test_answers_are_given_while_stopping() -> None:
    """What a handler returns while its node stops reaches whoever asked."""
    inbox = Inbox(hold=True, answer=b"in time")
    async with make() as client:
        server = make(inbox)
        await server.start()
        answer = client.request(to(server))
        await inbox.holds(1)
        stop = asyncio.ensure_future(server.stop())
        await turns()
        inbox.gate.set()
        await within(stop)
        assert (await answer).data == b"in time"


@pytest.mark.asyncio
async def test_queued_and_unconfirmed_sends_end() -> None:
    """Stopping waits for what was sent, far more than a window of it: everything is handled once, in order."""
    inbox = Inbox()
    async with make(inbox, slots=1, window=4) as server:
        client = make()
        await client.start()
        await within(client.ready(server.address))
        futures = [client.send(to(server, n.to_bytes(2, "big"))) for n in range(500)]
        await within(client.stop())
        await within(asyncio.gather(*futures))
    assert inbox.begun == [n.to_bytes(2, "big") for n in range(500)]


@pytest.mark.asyncio
async def test_unacknowledged_sends_are_handled() -> None:
    """What was sent without acknowledgement before the stop arrives all the same."""
    inbox = Inbox()
    async with make(inbox, slots=1, window=4) as server:
        client = make(acknowledge=False)
        await client.start()
        await within(client.ready(server.address))
        futures = [client.send(to(server, n.to_bytes(2, "big"))) for n in range(300)]
        await within(client.stop())
        await within(asyncio.gather(*futures))
        await inbox.holds(300)
    assert inbox.begun == [n.to_bytes(2, "big") for n in range(300)]


@pytest.mark.asyncio
async def test_stop_while_dialling() -> None:
    """Stopping while a peer is dialled goes on dialling for the time it has; then the message was not sent."""
    client = make()
    await client.start()
    port = free_port()
    future = client.send(Message(b"x", f"127.0.0.1:{port}"), timeout=None)
    await turns()
    took = await stop_with(client, 0.1, 5)
    assert took > 0.09
    with pytest.raises(NotSent, match="the node is not running") as caught:
        await within(future)
    assert isinstance(caught.value.__cause__, Closed)


@pytest.mark.asyncio
async def test_listener_that_comes_while_the_dialler_stops() -> None:
    """A message that waits for its peer is delivered if the peer comes while the sender's node drains."""
    inbox = Inbox()
    client = make()
    await client.start()
    port = free_port()
    future = client.send(Message(b"x", f"127.0.0.1:{port}"))
    await turns()
    stop = asyncio.ensure_future(client.stop())
    await turns()
    async with make(inbox, port=port):
        await within(stop)
        await within(future)
    assert inbox.begun == [b"x"]


@pytest.mark.asyncio
async def test_stop_amid_a_handshake() -> None:
    """A link whose handshake is not there yet, in either role, is closed by a stop without waiting for it."""
    listener = RawListener()
    node = make()
    await node.start()
    future = node.send(Message(b"x", f"127.0.0.1:{listener.port}"))
    link = await listener.accept()
    with dialled(node.address):
        await until(lambda: node.stats().connections == 2, "both links")
        assert await stop_with(node, 0, 5) < 2
    with pytest.raises(NotSent):
        await within(future)
    link.close()
    listener.close()


@pytest.mark.asyncio
async def test_large_body_on_its_way_out() -> None:
    """A stop waits for a large body that travels, as long as it may."""
    inbox = Inbox()
    async with make(inbox) as server:
        client = make()
        await client.start()
        future = client.send(to(server, BIG))
        await turns(3)
        await within(client.stop())
        await within(future)
    assert inbox.begun == [BIG]


@pytest.mark.asyncio
async def test_large_body_on_its_way_in() -> None:
    """A large body whose beginning has arrived is received whole, handled and acknowledged before the stop ends."""
    inbox = Inbox()
    async with make() as client:
        server = make(inbox)
        await server.start()
        await within(client.ready(server.address))
        future = client.send(to(server, BIG * 4), timeout=None)
        await until(lambda: server.stats().bytes_received > 100_000, "its beginning")
        assert not inbox.messages
        await within(server.stop())
        await within(future)
    assert inbox.begun == [BIG * 4]


@pytest.mark.asyncio
async def test_large_body_cut_off() -> None:
    """A stop without time cuts a large body off: its sender is told that it is not confirmed, or not begun."""
    inbox = Inbox()
    async with make(inbox) as server:
        client = make()
        await client.start()
        await within(client.ready(server.address))
        future = client.send(to(server, BIG * 4))
        await until(lambda: server.stats().bytes_received > 100_000, "its beginning")
        assert await stop_with(client, 0, 5) < 2
        with pytest.raises(NotConfirmed):
            await within(future)
        await until(lambda: server.stats().connections == 0, "the end of the link")
        assert inbox.begun == []


@pytest.mark.asyncio
async def test_time_over_refuses_and_cancels() -> None:
    """When the time is over, handlers are cancelled and what waits is refused; each sender learns which it was."""
    inbox = Inbox(hold=True)
    async with make() as client:
        server = make(inbox)
        await server.start()
        first, second = client.send(to(server, b"first")), client.send(to(server, b"second"))
        await inbox.holds(1)
        await until(lambda: server.stats().received == 2, "both messages")
        took = await stop_with(server, 0.05, 5)
        assert took > 0.045
        assert inbox.cancelled == 1
        with pytest.raises(Refused, match="the node stopped while it was handled") as begun:
            await within(first)
        assert begun.value.sent
        with pytest.raises(ShuttingDown, match="the node stopped before it was begun") as waiting:
            await within(second)
        assert not waiting.value.sent
    assert inbox.begun == [b"first"]


@pytest.mark.asyncio
async def test_message_sent_while_the_receiver_stops() -> None:
    """What comes after the goodbye is not begun: it waits for another link, and was not sent if none comes."""
    inbox = Inbox(hold=True)
    async with make() as client:
        server = make(inbox)
        await server.start()
        first = client.send(to(server, b"first"))
        await inbox.holds(1)
        address = server.address
        stop = asyncio.ensure_future(server.stop())
        await turns(1)
        late = client.send(Message(b"late", address), timeout=0.3)
        await turns()
        inbox.gate.set()
        await within(stop)
        await within(first)
        with pytest.raises(SendError) as caught:
            await within(late)
        assert not caught.value.sent
    assert inbox.begun == [b"first"]


@pytest.mark.asyncio
async def test_restart_gets_what_came_too_late() -> None:
    """What came after the goodbye is delivered to whoever listens there next, once."""
    port = free_port()
    first_run, second_run = Inbox(hold=True), Inbox()
    async with make() as client:
        server = make(first_run, port=port)
        await server.start()
        early = client.send(to(server, b"early"))
        await first_run.holds(1)
        stop = asyncio.ensure_future(server.stop())
        await turns(1)
        late = client.send(Message(b"late", f"127.0.0.1:{port}"))
        await turns()
        first_run.gate.set()
        await within(stop)
        async with make(second_run, port=port):
            await within(asyncio.gather(early, late))
    assert (first_run.begun, second_run.begun) == ([b"early"], [b"late"])


@pytest.mark.asyncio
async def test_stop_twice() -> None:
    """A second stop waits for the first, whatever time it was given; a third finds nothing to do."""
    inbox = Inbox(hold=True)
    async with make() as client:
        server = make(inbox)
        await server.start()
        future = client.send(to(server))
        await inbox.holds(1)
        stops = [asyncio.ensure_future(server.stop()), asyncio.ensure_future(server.stop(drain=0))]
        await turns()
        assert not any(stop.done() for stop in stops)
        inbox.gate.set()
        await within(asyncio.gather(*stops, future))
        await within(server.stop())


@pytest.mark.asyncio
async def test_cancelled_stop_still_closes() -> None:
    """Cancelling a stop ends its draining at once; the node is closed when the cancellation comes out."""
    inbox = Inbox(hold=True)
    async with make() as client:
        server = make(inbox)
        await server.start()
        future = client.send(to(server))
        await inbox.holds(1)
        stop = asyncio.ensure_future(server.stop(drain=None))
        other = asyncio.ensure_future(server.stop())
        await turns()
        stop.cancel()
        with pytest.raises(asyncio.CancelledError):
            await within(stop)
        assert "stopped" in repr(server)
        await within(other)
        await settle(future)
    assert inbox.cancelled == 1


@pytest.mark.asyncio
async def test_stop_cancelled_twice() -> None:
    """Cancelled again while it closes, the stop gives up waiting, and the node closes all the same."""

    async def stubborn(message: Received[bytes]) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await go_on.wait()

    begun, go_on = asyncio.Event(), asyncio.Event()
    async with make() as client:
        server = make(stubborn)
        await server.start()
        future = client.send(to(server))
        await within(begun.wait())
        stop = asyncio.ensure_future(server.stop(drain=None))
        for _ in range(2):
            await turns()
            stop.cancel()
        with pytest.raises(asyncio.CancelledError):
            await within(stop)
        go_on.set()
        await within(server.stop())
        assert "stopped" in repr(server)
        await settle(future)


@pytest.mark.asyncio
@pytest.mark.parametrize("through", ["itself", "a timeout", "a task", "wait_for"])
async def test_stop_from_a_handler(through: str) -> None:
    """A handler may stop its own node: the stop waits for all but that handler, which runs to its end."""

    async def handler(message: Received[bytes]) -> None:
        if message.data == b"stop":
            match through:
                case "itself":
                    await message.node.stop()
                case "a timeout":
                    async with asyncio.timeout(5):
                        await message.node.stop()
                case "a task":
                    stops.append(asyncio.ensure_future(message.node.stop()))
                case _:
                    try:
                        await asyncio.wait_for(message.node.stop(drain=0.05), 5)
                    except asyncio.CancelledError:
                        # Before Python 3.12 it stops in a task of its own, and the handler is one to be ended.
                        stopped.set()
                        raise
            stopped.set()
        else:
            await until(lambda: "stopping" in repr(message.node), "the stop")

    stops: list[asyncio.Future[None]] = []
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with make() as client:
        server = make(handler, slots=2)
        await server.start()
        other = client.send(to(server, b"other"))
        future = client.send(to(server, b"stop"))
        begin = loop.time()
        await within(stopped.wait())
        await within(asyncio.gather(*stops))
        await within(server.stop())
        assert loop.time() - begin < 4
        await settle(other, future)
        if through != "wait_for":  # there the node cannot know that it is its handler that waits
            assert other.exception() is None
        error = future.exception()
        assert error is None or isinstance(error, SendError)


@pytest.mark.asyncio
async def test_plain_handler_stops_its_node() -> None:
    """A plain function that starts a stop is acknowledged before the node is gone."""
    stops: list[asyncio.Future[None]] = []

    def handler(message: Received[bytes]) -> None:
        stops.append(asyncio.ensure_future(message.node.stop()))

    async with make() as client:
        server = make(handler)
        await server.start()
        await within(client.send(to(server)))
        await within(asyncio.gather(*stops))
        assert "stopped" in repr(server)


@pytest.mark.asyncio
async def test_handler_that_releases_early_is_waited_for() -> None:
    """A handler that released its message and works on is waited for as well."""

    async def handler(message: Received[bytes]) -> None:
        message.release()
        await gate.wait()
        ended.append(message.data)

    gate, ended = asyncio.Event(), []  # type: asyncio.Event, list[bytes]
    async with make() as client:
        server = make(handler)
        await server.start()
        await within(client.send(to(server)))
        stop = asyncio.ensure_future(server.stop())
        await turns()
        assert not stop.done()
        gate.set()
        await within(stop)
    assert ended == [b"x"]


@pytest.mark.asyncio
async def test_retry_does_not_outlive_the_node() -> None:
    """A send that would be sent again when its link is lost ends with its node."""
    inbox = Inbox(hold=True)
    async with make(inbox) as server:
        client = make()
        await client.start()
        future = client.send(to(server), retry=5, timeout=None)
        await inbox.holds(1)
        await within(client.stop(drain=0))
        with pytest.raises(SendError):
            await within(future)
        inbox.gate.set()


@pytest.mark.asyncio
async def test_frozen_peer_does_not_hold_up_the_stop() -> None:
    """A peer that reads nothing more costs a stop its time to drain and little more."""
    listener = RawListener()
    node = make(keepalive=None, timeout=None)
    await node.start()
    futures = [node.send(Message(BIG, f"127.0.0.1:{listener.port}"), acknowledge=False) for _ in range(4)]
    async with raw_accepting(listener) as link:
        link.shrink_receive_buffer()
        await until(lambda: node.stats().sent, "the first message")
        assert await stop_with(node, 0.05, 5) < 2
        await settle(*futures)
        with pytest.raises(SendError):
            await futures[-1]
    listener.close()


@pytest.mark.asyncio
async def test_waiting_consumers_are_told() -> None:
    """Whoever waits for a message when the node stops is told; loops end."""
    node = make()
    await node.start()

    async def loop_over() -> None:
        async for _ in node:
            raise AssertionError

    receiving, looping = asyncio.ensure_future(node.receive()), asyncio.ensure_future(loop_over())
    await turns()
    await within(node.stop())
    with pytest.raises(Closed):
        await within(receiving)
    await within(looping)


@pytest.mark.asyncio
async def test_pulled_message_may_end_after_the_stop() -> None:
    """A message that was pulled and not ended is not confirmed; ending it after the stop does nothing."""
    async with make() as client:
        server = make()
        await server.start()
        future = client.send(to(server))
        message = await within(server.receive())
        await within(server.stop(drain=0))
        message.release()
        message.refuse()
        with pytest.raises(NotConfirmed):
            await within(future)


@pytest.mark.asyncio
async def test_no_timers_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a stop no timer of the node is left on the loop, whatever deadlines it had."""
    loop = asyncio.get_running_loop()
    inbox = Inbox(hold=True)
    timers: list[asyncio.TimerHandle] = []
    call_at, call_later = loop.call_at, loop.call_later

    def keep(handle: asyncio.TimerHandle) -> asyncio.TimerHandle:
        timers.append(handle)
        return handle

    with monkeypatch.context() as patch:
        patch.setattr(loop, "call_at", lambda *args, **kw: keep(call_at(*args, **kw)), raising=False)
        patch.setattr(loop, "call_later", lambda *args, **kw: keep(call_later(*args, **kw)), raising=False)
        server, client = make(inbox), make(timeout=30)
        await server.start()
        await client.start()
        async with raw_dialling(server, port=0, redpoll=False):
            futures = [client.send(to(server), timeout=20 + n) for n in range(3)]
            futures.append(client.send(Message(b"x", f"127.0.0.1:{free_port()}")))
            await inbox.holds(1)
            await within(client.stop(drain=0))
            await within(server.stop(drain=0))
            await settle(*futures)
    await turns()
    left = [timer for timer in timers if not timer.cancelled() and timer.when() > loop.time() + 1]
    assert not left


Scenario = Callable[[Node[Any], Node[Any]], Coroutine[Any, Any, object]]


async def _requests(server: Node[Any], client: Node[Any]) -> None:
    await client.request(to(server))


async def _burst(server: Node[Any], client: Node[Any]) -> None:
    await asyncio.gather(*(client.send(to(server)) for _ in range(50)))


async def _large(server: Node[Any], client: Node[Any]) -> None:
    await asyncio.gather(client.send(to(server, BIG)), client.send(to(server)))


async def _both_ways(server: Node[Any], client: Node[Any]) -> None:
    await asyncio.gather(client.send(to(server)), server.send(to(client)))


@pytest.mark.asyncio
@pytest.mark.parametrize("scenario", [_requests, _burst, _large, _both_ways])
@pytest.mark.parametrize("stops_first", ["server", "client"])
@pytest.mark.parametrize("drain", [0, 1])
async def test_stop_at_any_moment(scenario: Scenario, stops_first: str, drain: float) -> None:
    """Whatever turn of the loop a stop begins at, every send ends, as done or with a SendError, and nothing is left."""
    for moment in (*range(12), 20, 40):
        inbox = Inbox(answer=b"answer")
        server, client = make(inbox), make(Inbox())
        await server.start()
        await client.start()
        work = asyncio.ensure_future(scenario(server, client))
        await turns(moment)
        first, second = (server, client) if stops_first == "server" else (client, server)
        await within(first.stop(drain=drain))
        await within(second.stop(drain=0))
        try:
            await within(work)
        except (SendError, Closed):
            pass


@pytest.mark.asyncio
async def test_config_is_the_one_it_was_made_with() -> None:
    """The options are those given, keywords before the record."""
    node = Node(None, Config(port=0, timeout=7), timeout=8)
    assert (node.config.port, node.config.timeout) == (0, 8)
