"""Tokens of a hub: who is let in, what each may do, and what happens when the file changes."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import redpoll
from redpoll import Config, ConfigError, Hub, Message, Node
from redpoll.bus import EngineState, EngineURL, Task
from redpoll.bus.broker import Limits, Permissions
from redpoll.bus.engines.hub import protocol as p
from redpoll.bus.engines.hub import server
from redpoll.bus.engines.hub.tokens import Tokens
from redpoll.errors import DialFailed, NotAuthorized
from redpoll.node import Received
from redpoll.node.door import LayerNode, Peer
from redpoll.testing.certificates import Certificates
from tests.bus.engines.hub.support import Running, running
from tests.bus.engines.hub.test_hub import body
from tests.node.support import PATIENCE, elapse, until

ANN, BOB, OPS = "ann-ann-ann-ann-1", "bob-bob-bob-bob-2", "ops-ops-ops-ops-3"
FILE = f"""
[ann]
token = "{ANN}"
submit = ["night"]
read_results = ["night"]
[bob]
token = ["{BOB}", "{BOB}-new"]
work = ["#"]
[ops]
token = "{OPS}"
all = ["#"]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of tokens."""
    made = tmp_path / "tokens.toml"
    made.write_text(FILE)
    return made


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_PAUSE", 0.02)


def url(hub: Any, token: str) -> str:
    """The URL of a hub, with a token."""
    return str(hub.url).replace("://", f"://{token}@")


def test_what_a_file_says(file: Path) -> None:
    """An identity has its permissions by each of its tokens; who shows none of them has none."""
    tokens = Tokens(file)
    for token in (BOB, f"{BOB}-new"):
        _, rights = tokens.find(token)
        assert rights is not None
        assert rights == Permissions("bob", {"work": ["#"]})
    _, ann = tokens.find(ANN)
    assert ann is not None
    assert ann.allow("read results", "night")
    assert not ann.allow("work", "night")
    _, ops = tokens.find(OPS)
    assert ops is not None
    assert all(ops.allow(word, "x.y") for word in ("submit", "administer", "read results"))
    for token in ("", "ann", f"{ANN} ", "\udcff" * 16):
        assert tokens.find(token)[1] is None


@pytest.mark.parametrize(
    "text",
    [
        "[ann",
        "ann = 1",
        '[ann]\ntoken = "short"',
        "[ann]\ntoken = 12345678901234567",
        f'[ann]\ntoken = "{"x" * 1025}"',
        f'[ann]\ntoken = "{ANN}"\nsubmit = "night"',
        f'[ann]\ntoken = "{ANN}"\nsubmit = [1]',
        f'[ann]\ntoken = "{ANN}"\nsubmits = ["night"]',
        f'[ann]\ntoken = "{ANN}"\nsubmit = [""]',
        f'[ann]\ntoken = "{ANN}"\n[bob]\ntoken = "{ANN}"',
        f'["ann:x"]\ntoken = "{ANN}"',
    ],
)
def test_what_a_file_cannot_say(file: Path, text: str) -> None:
    """What cannot be meant is an error, which shows no token; a file that is read again changes nothing then."""
    tokens = Tokens(file)
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        Tokens(file)
    assert ANN not in str(caught.value)
    assert not tokens.renew()
    assert tokens.find(ANN)[1] is not None
    file.unlink()
    assert not tokens.renew()
    assert tokens.find(ANN)[1] is not None


@pytest.mark.skipif(os.name != "posix", reason="modes of files are POSIX's")
def test_a_file_that_others_can_read(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file whose tokens any user can read is used with a warning, also when it is read again; one of a group is not."""
    tokens = None
    for mode, count in ((0o640, 0), (0o600, 0), (0o644, 1)):
        file.chmod(mode)
        tokens = Tokens(file)
        assert caplog.text.count("any user of this machine can read the tokens") == count
    assert tokens is not None
    file.write_text(FILE + "\n")
    assert tokens.renew()
    assert caplog.text.count("any user of this machine can read the tokens") == 2
    assert tokens.find(ANN)[1] is not None
    assert ANN not in caplog.text


def test_they_are_compared_in_constant_time(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each token of the file is compared, and by what tells nothing of where it differs."""
    compared: list[bytes] = []
    whole = hmac.compare_digest

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(one)
        return whole(one, other)

    tokens = Tokens(file)
    monkeypatch.setattr(hmac, "compare_digest", compare)
    for token in (ANN, "nothing"):
        compared.clear()
        tokens.find(token)
        assert len(compared) == 4


@pytest.mark.asyncio
async def test_each_may_do_what_it_may(tmp_path: Path, file: Path) -> None:
    """A hub lets nobody in without a token; each client can do what its token allows, and is told what it may not."""
    async with Hub(tmp_path / "hub", port=0, tokens=file) as hub:
        for wrong, why in ((hub.url, "wants a token"), (url(hub, "no-token-of-it-0"), "does not know the token")):
            with pytest.raises(NotAuthorized, match=why):
                await redpoll.connect(wrong).__aenter__()
        async with redpoll.connect(url(hub, ANN)) as ann, redpoll.connect(hub.url, token=BOB) as bob:
            task = await ann.tasks.submit(20, queue="night")
            with pytest.raises(NotAuthorized, match="'ann' may not use 'day'"):
                await ann.tasks.submit(1, queue="day")
            with pytest.raises(NotAuthorized, match="'ann' may not work 'night'"):
                await ann.tasks.next(queue="night", timeout=0)
            with pytest.raises(NotAuthorized, match="'bob' may not submit 'night'"):
                await bob.tasks.submit(1, queue="night")
            with pytest.raises(NotAuthorized, match="'bob' may not administer 'night'"):
                await bob.queues.purge("night")
            async with bob.tasks.worker(lambda task: task.data + 1, queue="night"):
                assert await task.result(timeout=PATIENCE) == 21
            assert await ann.tasks.handle(task.id, queue="night").result(timeout=PATIENCE) == 21
            with pytest.raises(NotAuthorized, match="'bob' may not read results"):
                await bob.tasks.handle(task.id, queue="night").result(timeout=PATIENCE)
            async with redpoll.connect(url(hub, OPS)) as ops:
                await ops.queues.declare("day")
                assert (await ops.queues.names(), await ann.queues.names()) == (["night", "day"], ["night"])


@pytest.mark.asyncio
async def test_a_revoked_token(tmp_path: Path, file: Path) -> None:
    """When a token is taken out of the file its links are closed and its tasks go back; put in again it is let in again."""
    async with (
        Hub(tmp_path / "hub", port=0, tokens=file) as hub,
        redpoll.connect(url(hub, OPS)) as ops,
        redpoll.connect(url(hub, BOB)) as bob,
    ):
        await ops.queues.declare("night")
        await ops.tasks.submit(1, queue="night")
        async with bob.tasks.next(queue="night", timeout=PATIENCE) as task:
            file.write_text(FILE.replace(BOB, "another-token-of-bob"))
            await until(lambda: bob.state is EngineState.DEGRADED, "the end of its link")
            assert "does not know the token" in (bob.status.reason or "")
            # It comes back to the queue at once, and blames nobody.
            async with ops.tasks.next(queue="night", timeout=PATIENCE) as again:
                assert again.attempt == 1
                again.set_result(2)
            await until(lambda: ops.state is EngineState.READY, "ops")
            file.write_text(FILE)
            await until(lambda: bob.state is EngineState.READY, "its return")
            await until(lambda: task.lost, "the loss of its task")
        assert (await ops.queues.inspect("night")).done == 1


@pytest.mark.asyncio
async def test_what_a_revoked_token_leaves(tmp_path: Path, file: Path) -> None:
    """A revoked worker loses its tasks at once, and operations fail as not authorized; with the token it goes on."""
    async with (
        Hub(tmp_path / "hub", port=0, tokens=file) as hub,
        redpoll.connect(url(hub, OPS)) as ops,
        redpoll.connect(url(hub, f"{BOB}-new")) as bob,
        redpoll.connect(url(hub, ANN)) as ann,
    ):
        begun: list[Any] = []
        ended: list[Any] = []
        await ops.queues.declare("other")

        async def handler(task: Task) -> str:
            begun.append(task)
            if len(begun) > 1:
                return "again"
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(task)
            return "never"

        async with bob.tasks.worker(handler, queue="night", cancel_lost=True):
            submitted = await ann.tasks.submit(1, queue="night")
            result = asyncio.ensure_future(submitted.result(timeout=PATIENCE))
            claim = asyncio.ensure_future(bob.tasks.next("other", timeout=PATIENCE).__aenter__())
            await until(lambda: len(begun) == 1, "the handler")
            engine: Any = bob.engine
            await until(lambda: engine._takes and not engine._requests, "the hub's answer to the claim")
            file.write_text(f'[ops]\ntoken = "{OPS}"\nall = ["#"]\n')
            await until(lambda: ended == begun, "the end of a handler whose task is lost")
            assert begun[0].lost
            for lost in (result, claim):
                with pytest.raises(NotAuthorized, match="does not know the token"):
                    await asyncio.wait_for(lost, PATIENCE)
            calls: list[Callable[[], Awaitable[object]]] = [
                lambda: bob.queues.inspect("night"),
                lambda: bob.tasks.submit(1, queue="night"),
                lambda: bob.broadcast.send(1, subject="a"),
                lambda: bob.tasks.next("night", timeout=PATIENCE).__aenter__(),
            ]
            for call in calls:
                with pytest.raises(NotAuthorized, match="does not know the token"):
                    await asyncio.wait_for(call(), PATIENCE)
            assert (await ops.queues.inspect("night")).ready == 1
            file.write_text(FILE)
            assert await ops.tasks.handle(submitted.id, queue="night").result(timeout=PATIENCE) == "again"
            assert begun[1].attempt == 1


@pytest.mark.asyncio
async def test_permissions_that_change(tmp_path: Path, file: Path) -> None:
    """What a token allows counts from when the file changes: what is not allowed any more ends, what is goes on."""
    async with (
        Hub(tmp_path / "hub", port=0, tokens=file) as hub,
        redpoll.connect(url(hub, OPS)) as ops,
        redpoll.connect(url(hub, BOB)) as bob,
    ):
        await ops.queues.declare("night")
        await ops.queues.declare("day")
        consumers = [await bob.engine.consume(name) for name in ("night", "day")]
        file.write_text(FILE.replace('work = ["#"]', 'work = ["day"]'))
        with pytest.raises(NotAuthorized, match="may not work 'night'"):
            await asyncio.wait_for(anext(consumers[0]), PATIENCE)
        await ops.tasks.submit(1, queue="day")
        delivery = await asyncio.wait_for(anext(consumers[1]), PATIENCE)
        assert await delivery.ack()


@pytest.mark.asyncio
async def test_signs_of_life(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sign of life with the name and the token of the client counts for the client's own link; no other one does."""
    with running(tokens=Tokens(file)) as hub:
        async with redpoll.connect(url(hub, BOB)) as bob, Node(listen=False, serializer="raw") as process:
            heard: list[Any] = []
            monkeypatch.setattr(hub.hub.node, "heard", heard.append)
            (peer,) = hub.hub._clients
            name = bob.engine._name  # type: ignore[attr-defined]
            for token, count in ((OPS, 0), (f"{BOB}-new", 0), ("", 0), (BOB, 1)):
                await process.send(Message(body([p.ALIVE, name, token]), hub.hub.address), timeout=PATIENCE)
                assert heard == [peer] * count, token


@pytest.mark.asyncio
async def test_a_token_is_shown_to_hubs_alone(file: Path) -> None:
    """A node that is no hub learns no token: neither at first, nor where a hub was; a hub that is there again does."""
    learnt: list[Any] = []
    links = 0

    class Stranger(LayerNode):
        def arrived(self, messages: list[Received[Any]]) -> list[Received[Any]]:
            learnt.extend(each.data for each in messages)
            return messages

        def _session_began(self, peer: Peer, renewed: bool) -> None:
            nonlocal links
            links += 1

    async with Stranger(Config(port=0, serializer="raw")) as stranger:
        with pytest.raises(DialFailed, match="the node at that address did not greet as a hub"):
            await redpoll.connect(f"redpoll://{OPS}@{stranger.address}", connect_timeout=0.5).__aenter__()
    assert (links, learnt) == (1, [])
    hub = Running(tokens=Tokens(file))
    port = hub.hub.address.port
    async with redpoll.connect(url(hub, OPS)) as bus:
        hub.stop()
        async with Stranger(Config(port=port, serializer="raw")):
            await until(lambda: links == 2, "a link to the stranger")
            await elapse(0.25)
            assert not learnt
        with running(port=port, tokens=Tokens(file)):
            await until(lambda: bus.state is EngineState.READY, "the hub that is there again")
            await bus.queues.declare("night")


@pytest.mark.asyncio
async def test_histories_give_no_power(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A history names a lost worker by its identity and a digest: saying that is no sign of its life, nor takes its place."""
    with running(tokens=Tokens(file), limits=Limits(grace=0.01)) as hub:
        async with redpoll.connect(url(hub, OPS)) as ops, Node(listen=False, serializer="raw") as forger:
            lost = redpoll.connect(url(hub, BOB))
            await lost.__aenter__()
            task = await ops.tasks.submit(1, queue="night")
            held = lost.tasks.next(queue="night", timeout=PATIENCE)
            await held.__aenter__()
            (name,) = [each for each in hub.hub.broker.peers.found if each.startswith("bob:")]
            secret: str = lost.engine._name  # type: ignore[attr-defined]
            heard: list[Any] = []
            monkeypatch.setattr(hub.hub.node, "heard", heard.append)
            for shown in (name, name.partition(":")[2]):
                assert secret not in shown
                await forger.send(Message(body([p.ALIVE, shown, BOB]), hub.hub.address), timeout=PATIENCE)
                hello = body([p.HELLO, p.VERSION, shown, BOB])
                await forger.send(Message(hello, hub.hub.address), timeout=PATIENCE)
            assert not heard
            assert await lost.healthy()
            lost.engine.abort()  # type: ignore[attr-defined]
            async with ops.tasks.next(queue="night", timeout=PATIENCE) as again:
                (line,) = (await ops.queues.browse("night", "taken"))[0].history
                assert line == f"worker {name} was lost"
                again.set_result(None)
            await task.result(timeout=PATIENCE)
            await held.__aexit__(None, None, None)
            await lost.close()


@pytest.mark.asyncio
async def test_nobody_takes_the_place_of_another(file: Path) -> None:
    """A client that says to be another one, with a token of its own, gets nothing of that one's."""
    with running(tokens=Tokens(file)) as hub:
        async with redpoll.connect(url(hub, BOB)) as bob, Node(listen=False, serializer="raw") as stranger:
            name = bob.engine._name  # type: ignore[attr-defined]
            hello = body([p.HELLO, p.VERSION, name, OPS])
            sent = stranger.send(Message(hello, hub.hub.address), timeout=PATIENCE)
            await until(lambda: len(hub.hub.broker.peers.found) == 2, "both")
            sent.cancel()
            assert await bob.healthy()


@pytest.mark.asyncio
@pytest.mark.parametrize("what", ["silent", "large", "wrong"])
async def test_strangers(file: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Who does not say hello in time, says more before, or shows no token is cut off, and nothing is kept of it."""
    with running(tokens=Tokens(file)) as hub:
        hub.hub._patience = 0.1
        async with Node(listen=False, serializer="raw") as stranger:
            lost: list[object] = []
            stranger.events.peer_lost = lambda _, error: lost.append(error)
            if what == "silent":
                await stranger.ready(hub.hub.address, timeout=PATIENCE)
            else:
                large = body([p.HELLO, p.VERSION, "x" * 5_000, OPS])
                sent = large if what == "large" else body([p.HELLO, p.VERSION, "x", "no-token-of-it-0"])
                stranger.send(Message(sent, hub.hub.address), timeout=PATIENCE).add_done_callback(
                    lambda each: each.cancelled() or each.exception()
                )
            await until(lambda: lost, "the end of the stranger's link")
            assert not hub.hub.broker.peers.found
        await until(lambda: not hub.hub._strangers, "the end of its session")


@pytest.mark.asyncio
async def test_no_token_is_shown(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither errors nor logs nor reprs have the token."""
    caplog.set_level(logging.DEBUG)
    secret = "a-token-that-is-wrong"
    with running(tokens=Tokens(file)) as hub:
        bus = redpoll.connect(url(hub, secret), wait=True)
        async with bus:
            await until(lambda: bus.state is EngineState.DEGRADED, "the refusal")
            texts = [repr(bus), str(bus.status.reason), repr(EngineURL.parse(url(hub, secret)))]
        for options in ({"tokn": secret}, {"token": secret.encode()}):
            with pytest.raises(ConfigError) as caught:
                redpoll.connect(hub.url, **options)
            texts.append(str(caught.value))
    assert not [text for text in [*texts, caplog.text] if secret in text]


def test_off_loopback(tmp_path: Path, file: Path) -> None:
    """Off loopback a hub wants tokens, unless it is told that everybody may do everything."""
    for host in ("0.0.0.0", "::", "hub.example.org"):
        with pytest.raises(ConfigError, match="tokens"):
            Hub(tmp_path / "hub", host=host)
        Hub(tmp_path / "hub", host=host, tokens=False)
        Hub(tmp_path / "hub", host=host, tokens=file)
    for host in ("localhost", "127.0.0.1", "::1", f"unix:{tmp_path}/socket"):
        Hub(tmp_path / "hub", host=host)


@pytest.mark.asyncio
async def test_tls(tmp_path: Path, file: Path, redpoll_pki: Certificates) -> None:
    """A hub with certificates is reached with those of the same CA, given as files, in the URL, or as a record."""
    mine = str(redpoll_pki.issue("hub"))
    async with Hub(tmp_path / "hub", port=0, tls=redpoll.TLS(certificate=mine), tokens=file) as hub:
        for options in ({"tls": mine}, {"tls": redpoll.TLS(certificate=mine)}):
            async with redpoll.connect(url(hub, OPS), **options) as bus:
                await bus.queues.declare("q")
        async with redpoll.connect(f"{url(hub, OPS)}?tls={mine}") as bus:
            assert await bus.queues.names() == ["q"]
        with pytest.raises(redpoll.RedpollError):
            await redpoll.connect(url(hub, OPS), connect_timeout=0.5).__aenter__()
    with pytest.raises(ConfigError):
        await Hub(tmp_path / "hub", port=0, host="0.0.0.0", tokens=file).start()
    async with Hub(tmp_path / "hub", port=0, host="0.0.0.0", tokens=file, config=Config(encryption=False)) as hub:
        assert hub.holds["queues"] == 1


PATTERNS = """
[server]
token = "server-server-server"
serve = ["calculator.#"]
[caller]
token = "caller-caller-caller"
call = ["calculator.#"]
[sender]
token = "sender-sender-sender"
publish = ["news.#", "audit.#"]
[reader]
token = "reader-reader-reader"
subscribe = ["news.#", "mine", "audit.#"]
"""


@pytest.mark.asyncio
async def test_each_pattern_with_no_more_than_it_needs(tmp_path: Path) -> None:
    """Calls, broadcasts and notifications work between programs that may do nothing else, and for no others."""
    (tmp_path / "tokens.toml").write_text(PATTERNS)

    class Calculator:
        def add(self, a: int, b: int) -> int:
            return a + b

    async with Hub(tmp_path / "hub", port=0, tokens=tmp_path / "tokens.toml") as hub, AsyncExitStack() as stack:
        server, caller, sender, reader = [
            await stack.enter_async_context(redpoll.connect(url(hub, f"{name}-{name}-{name}")))
            for name in ("server", "caller", "sender", "reader")
        ]
        with pytest.raises(redpoll.NoRoute):
            await caller.rpc.call("calculator", "add", {"a": 1, "b": 2}, timeout=PATIENCE)
        async with server.rpc.serve("calculator", Calculator(), server="one"):
            assert await caller.rpc.call("calculator", "add", {"a": 1, "b": 2}, timeout=PATIENCE) == 3
            assert await caller.rpc.call("calculator", "add", {"a": 1, "b": 3}, timeout=PATIENCE, server="one") == 4
            await caller.rpc.fanout("calculator", "add", {"a": 1, "b": 3})
            with pytest.raises(NotAuthorized):
                await sender.rpc.call("calculator", "add", {"a": 1, "b": 2}, timeout=PATIENCE)
        with pytest.raises(NotAuthorized):
            async with caller.rpc.serve("calculator", Calculator(), server="two"):
                pass
        async with (
            reader.broadcast.subscribe(subject="news.*") as live,
            reader.broadcast.subscribe(subject="news.#", durable="mine") as durable,
        ):
            await sender.broadcast.send(1, subject="news.today")
            for subscription in (live, durable):
                found = await asyncio.wait_for(anext(aiter(subscription)), PATIENCE)
                assert found.body == 1
        await sender.notifier("me", topics=["audit"]).info("began", {"n": 1})
        heard: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        class Endpoint:
            async def info(self, notification: Any) -> None:
                heard.set_result((notification.event, notification.payload))

        async with reader.notifications.listen(Endpoint(), topics=["audit"]):
            assert await asyncio.wait_for(heard, PATIENCE) == ("began", {"n": 1})
        for wrong in ({"subject": "#"}, {"subject": "secret"}):
            with pytest.raises(NotAuthorized):
                async with reader.broadcast.subscribe(**wrong):  # type: ignore[arg-type]
                    pass
        with pytest.raises(NotAuthorized):
            await reader.broadcast.send(1, subject="news.today")


@pytest.mark.asyncio
async def test_violations_of_the_protocol_are_logged_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    """Clients that violate the protocol again and again are a line a second in the log of the hub, with their number."""
    sent = body([p.HELLO, p.VERSION + 1, "x", ""])
    with running() as hub:
        for _ in range(20):
            async with Node(lambda _: None, listen=False, serializer="raw") as stranger:
                lost = asyncio.Event()
                stranger.events.peer_lost = lambda _, __, lost=lost: lost.set()
                stranger.send(Message(sent, hub.hub.address), timeout=PATIENCE).add_done_callback(
                    lambda each: each.cancelled() or each.exception()
                )
                await asyncio.wait_for(lost.wait(), PATIENCE)
    logged = [each for each in caplog.messages if each.startswith("closed the link of a client that violated")]
    counts = [int(each.partition("(")[2].partition(" ")[0]) for each in logged[1:] if "(" in each]
    assert len(logged) < 20
    assert sum(counts) + len(logged) - len(counts) >= 20


@pytest.mark.asyncio
async def test_a_client_that_dials_again_is_logged_once_a_second(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A client that is refused again and again is a line a second in the log of the hub, with the number of times."""
    with running(tokens=Tokens(file)) as hub:
        for _ in range(20):
            with pytest.raises(NotAuthorized):
                async with redpoll.connect(url(hub, "a-token-that-is-unknown")):
                    pass
    logged = [each for each in caplog.messages if each.startswith("refused a client")]
    assert ": the hub does not know the token" in logged[0]
    counts = [int(each.partition("(")[2].partition(" ")[0]) for each in logged[1:] if "(" in each]
    assert len(logged) < 20
    assert sum(counts) + len(logged) - len(counts) >= 20
