"""What a node tells through its hooks."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
from pathlib import Path

import pytest

import redpoll
from redpoll import HandlerFailed, Message, Node, NotSent, PeerLost, Received, Refused, UsageError
from redpoll.node.hooks import NodeEvents, PeerInfo
from tests.node.support import Inbox, make, raw_dialling, settle, to, turns, until, within


@pytest.mark.asyncio
async def test_both_hooks_of_one_name_are_called() -> None:
    """`add` keeps what was there, and calls both in order."""
    events = NodeEvents()
    seen: list[str] = []
    events.peer_connected = lambda peer: seen.append("first")
    events.add("peer_connected", lambda peer: seen.append("second"))
    assert events.tell("peer_connected", PeerInfo(None, None, connected=True, redpoll=True))
    await turns()
    assert seen == ["first", "second"]


def test_an_unknown_hook_is_an_error_that_lists_the_known() -> None:
    """A misspelt name is refused, with those that there are."""
    with pytest.raises(UsageError, match=r"unknown hook: 'peer_conected'.*peer_connected"):
        NodeEvents().add("peer_conected", print)


def test_a_misspelt_hook_cannot_be_assigned() -> None:
    """Assigning to a name that is no hook's fails, instead of being forgotten."""
    with pytest.raises(AttributeError, match="peer_conected"):
        NodeEvents().peer_conected = print  # type: ignore[attr-defined]


def test_nobody_listens_unless_told() -> None:
    """`tell` says whether there was anybody to tell."""
    assert not NodeEvents().tell("peer_connected", PeerInfo(None, None, connected=True, redpoll=True))


@pytest.mark.asyncio
async def test_a_hook_that_raises_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    """What a hook raises is logged with the hook's name, and goes no further."""
    events = NodeEvents()

    def broken(peer: PeerInfo) -> None:
        raise RuntimeError("oops")

    events.peer_connected = broken
    with caplog.at_level(logging.ERROR, "redpoll.node"):
        assert events.tell("peer_connected", PeerInfo(None, None, connected=True, redpoll=True))
        await turns()
    assert "the hook peer_connected raised" in caplog.text


@pytest.mark.asyncio
async def test_a_coroutine_function_is_no_hook(caplog: pytest.LogCaptureFixture) -> None:
    """A hook that is a coroutine function does nothing, and the log says so."""
    events = NodeEvents()

    async def never(peer: PeerInfo) -> None:
        raise AssertionError

    events.peer_connected = never
    events.tell("peer_connected", PeerInfo(None, None, connected=True, redpoll=True))
    await turns()
    assert [each.getMessage() for each in caplog.records] == [
        "the hook peer_connected is a coroutine function and is not awaited: use a plain function"
    ]


@pytest.mark.asyncio
async def test_hooks_are_called_by_the_loop() -> None:
    """No frame of the node or its core is below a hook: whatever it does, it does not do it in the middle of their work."""
    below: dict[str, set[str]] = {}

    def note(name: str) -> None:
        frame = sys._getframe(1)
        files = below.setdefault(name, set())
        while frame.f_back is not None:
            frame = frame.f_back
            if frame.f_code.co_filename.startswith(str(Path(redpoll.__file__).parent)):
                files.add(Path(frame.f_code.co_filename).name)

    def handler(message: Received[bytes]) -> None:
        raise ValueError

    async with make(dial="once", window=1) as client:
        for name in NodeEvents.NAMES:
            setattr(client.events, name, lambda *_, name=name: note(name))
        async with make(handler) as server:
            server.events.handler_failed = lambda *_: note("handler_failed")
            for _ in range(3):
                client.send(to(server))
            await until(lambda: len(below) == 3, "the hooks")
        await until(lambda: "peer_lost" in below, "the loss")
    assert set(below) == {"peer_connected", "handler_failed", "send_failed", "peer_lost"}
    assert set().union(*below.values()) == {"hooks.py"}


@pytest.mark.asyncio
async def test_a_hook_may_send_and_stop_the_node() -> None:
    """A `send_failed` that sends again, and stops its node, while the queue fails that it was told of."""
    failed: list[BaseException] = []
    stops: list[asyncio.Task[None]] = []

    def again(message: Message[bytes], error: BaseException) -> None:
        failed.append(error)
        if len(failed) <= 20:
            client.send(message)
        if len(failed) == 30:
            stops.append(asyncio.create_task(client.stop(0)))

    async with make(dial="once") as client:
        client.events.send_failed = again
        async with make() as gone:
            address = gone.address
        for _ in range(40):
            client.send(Message(b"", address))
        await until(lambda: len(failed) == 60, "each failure once")
        await within(asyncio.gather(*stops))
    assert len(failed) == 60
    assert all(isinstance(error, NotSent) for error in failed)


@pytest.mark.asyncio
async def test_connections_and_losses_are_told() -> None:
    """`peer_connected` is called with the first link to a peer, `peer_lost` with the last one's error."""
    connected: list[PeerInfo] = []
    lost: list[tuple[PeerInfo, BaseException]] = []
    async with make() as client:
        client.events.peer_connected = connected.append
        client.events.peer_lost = lambda peer, error: lost.append((peer, error))
        async with make(lambda message: None) as server:
            await within(client.send(to(server)))
            await within(client.send(to(server)))
            assert [peer.identity for peer in connected] == [server.identity]
            identity = server.identity
        await until(lambda: lost, "the loss")
        ((peer, error),) = lost
        assert (peer.identity, peer.connected) == (identity, False)
        assert isinstance(error, PeerLost)


@pytest.mark.asyncio
async def test_a_failed_handler_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """`handler_failed` gets the message and what was raised, which is logged with the message's identity as well."""
    failures: list[tuple[bytes, BaseException]] = []
    error = ValueError("no good")

    def handler(message: Message[bytes]) -> None:
        raise error

    async with make(handler) as server, make() as client:
        server.events.handler_failed = lambda message, raised: failures.append((message.identity, raised))
        message = to(server)
        await settle(client.send(message))
    assert failures == [(message.identity, error)]
    assert message.identity.hex() in caplog.text


@pytest.mark.asyncio
async def test_a_failure_that_nobody_awaited_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """`send_failed` is told of a send whose future was dropped; the loop's log is not."""
    failed: list[Message[bytes]] = []
    async with make(dial="once") as client:
        client.events.send_failed = lambda message, error: failed.append(message)
        async with make(lambda message: None) as gone:
            address = gone.address
        message = Message(b"lost", address)
        client.send(message)
        await until(lambda: failed, "the news")
        assert failed == [message]
    assert "never retrieved" not in caplog.text


@pytest.mark.asyncio
async def test_a_failure_that_was_awaited_is_not_told() -> None:
    """`send_failed` is for failures that nobody saw: not for those that were awaited, gathered or cancelled."""
    failed: list[BaseException] = []
    async with make(dial="once") as client:
        client.events.send_failed = lambda message, error: failed.append(error)
        async with make() as gone:
            address = gone.address
        with pytest.raises(NotSent):
            await within(client.send(Message(b"", address)))
        results = await within(asyncio.gather(client.send(Message(b"", address)), return_exceptions=True))
        assert isinstance(results[0], NotSent)
        client.send(Message(b"", address)).cancel()
        gc.collect()
        assert client.stats().errors == 2
        client.send(Message(b"", address))
        await until(lambda: len(failed) == 1, "the one that nobody awaited")
        assert client.stats().errors == 3
        assert isinstance(failed[0], NotSent)


@pytest.mark.asyncio
async def test_a_request_that_nobody_awaited_is_told() -> None:
    """A refusal of a request whose future was dropped reaches `send_failed`, with the message."""
    failed: list[tuple[Message[bytes], BaseException]] = []

    def handler(message: Received[bytes]) -> None:
        message.refuse("no")

    async with make(handler) as server, make() as client:
        client.events.send_failed = lambda message, error: failed.append((message, error))
        message = to(server)
        client.request(message)
        await until(lambda: failed, "the news")
        ((told, error),) = failed
        assert told is message
        assert isinstance(error, Refused)
        assert client.stats().refused_by_peer == 1


@pytest.mark.asyncio
async def test_what_nobody_listens_to_is_logged_once_a_second(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a hook failures that nobody awaited are one warning a second, with the last error and how many they were."""
    monkeypatch.setattr("redpoll.node.reports._WARN_EVERY", 0.2)
    async with make(dial="once") as client:
        async with make() as gone:
            address = gone.address
        failure = f"message to {address} was not sent: cannot connect: Connection refused"
        remedy = "await the futures of send() and request(), or set events.send_failed"
        client.send(Message(b"", address))
        await until(lambda: caplog.records, "the first warning")
        for _ in range(3):
            client.send(Message(b"", address))
        await until(lambda: len(caplog.records) == 2, "the second, a while later")
        client.send(Message(b"", address))
        await until(lambda: client.stats().errors == 5, "the last failure")
        await turns()
        assert len(caplog.records) == 2
    assert [(each.name, each.levelno, each.getMessage()) for each in caplog.records] == [
        ("redpoll.node", logging.WARNING, f"an unawaited send failed: {failure}; {remedy}"),
        ("redpoll.node", logging.WARNING, f"3 unawaited sends failed, the last one: {failure}; {remedy}"),
        ("redpoll.node", logging.WARNING, f"an unawaited send failed: {failure}; {remedy}"),
    ]


@pytest.mark.asyncio
async def test_what_fails_at_the_end_of_a_node_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Sends that fail with the last links of a stopping node are in the log, though another failure just was."""
    inbox = Inbox(hold=True)
    async with make(inbox) as server, make() as client:
        client.send(to(server), timeout=0)
        await until(lambda: caplog.records, "the first warning")
        client.send(to(server))
        await until(lambda: inbox.messages, "the message")
        await within(client.stop(0))
        await until(lambda: len(caplog.records) == 2, "the second warning")
        inbox.gate.set()
    assert "was sent, but not confirmed: the node is not running" in caplog.messages[1]


@pytest.mark.asyncio
async def test_a_future_that_another_thread_drops_is_told_on_the_loop() -> None:
    """The collector may run in any thread: the hook runs in the node's."""
    told: list[int] = []
    async with make(dial="once") as client:
        client.events.send_failed = lambda message, error: told.append(threading.get_ident())
        async with make() as gone:
            address = gone.address
        held = [client.send(Message(b"", address))]
        await until(held[0].done, "the failure")
        await asyncio.to_thread(held.clear)
        await until(lambda: told, "the news")
    assert told == [threading.get_ident()]


@pytest.mark.asyncio
async def test_a_send_that_succeeds_has_no_finalizer() -> None:
    """What a failure that nobody awaits costs is not paid by sends that succeed."""
    async with make(lambda message: None) as server, make() as client:
        sending = client.send(to(server))
        await within(sending)
        assert not hasattr(type(sending), "__del__") or type(sending).__del__ is asyncio.Future.__del__
        failing = client.send(to(server), timeout=0)
        await settle(failing)
        assert hasattr(type(failing), "__del__")


@pytest.mark.asyncio
async def test_an_answer_to_libchirp_that_fails_is_told() -> None:
    """What a handler returns to a libchirp node is a send that nobody awaits: its failure reaches `send_failed`."""
    failed: list[BaseException] = []
    async with make(lambda message: b"answer", timeout=0.05) as server:
        server.events.send_failed = lambda message, error: failed.append(error)
        async with raw_dialling(server, port=0, redpoll=False) as link:
            link.send(link.message(b"question"))
            await until(lambda: failed, "the answer that is not acknowledged")
        assert isinstance(failed[0], TimeoutError)


@pytest.mark.asyncio
async def test_a_hook_that_raises_ends_no_message(caplog: pytest.LogCaptureFixture) -> None:
    """Hooks that raise are logged, and messages, links and handlers go on."""

    def broken(*args: object) -> None:
        raise RuntimeError("oops")

    def handler(message: Received[bytes]) -> bytes:
        if message.data == b"fail":
            raise ValueError
        return b"answer"

    async with make(handler) as server, make() as client:
        for node in (server, client):
            for name in NodeEvents.NAMES:
                setattr(node.events, name, broken)
        with pytest.raises(HandlerFailed):
            await within(client.send(to(server, b"fail")))
        assert (await within(client.request(to(server)))).data == b"answer"
    for name in ("peer_connected", "handler_failed", "peer_lost"):
        assert f"the hook {name} raised" in caplog.text


@pytest.mark.asyncio
async def test_a_hook_that_raises_often_is_logged_with_its_number(caplog: pytest.LogCaptureFixture) -> None:
    """Of a hook that raises the first exception is logged at once, and the last one with their number a second later."""

    def broken(*args: object) -> None:
        raise RuntimeError("oops")

    def handler(message: Received[bytes]) -> None:
        raise ValueError

    async with make(handler) as server, make() as client:
        server.events.handler_failed = broken
        for _ in range(100):
            with pytest.raises(HandlerFailed):
                await within(client.send(to(server)))
    lines = [record.getMessage() for record in caplog.records if "the hook" in record.getMessage()]
    counts = [1 if each.endswith("raised") else int(each.split()[4]) for each in lines]
    assert (counts[0], sum(counts)) == (1, 100)
    assert len(counts) < 20


def test_events_belong_to_their_node() -> None:
    """Each node has hooks of its own."""
    first: Node[bytes] = Node()
    second: Node[bytes] = Node()
    first.events.peer_connected = print
    assert second.events.peer_connected is None
