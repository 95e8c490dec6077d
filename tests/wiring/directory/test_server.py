"""The directory as its clients see it: word by word, over real links."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from redpoll import (
    Address,
    Closed,
    ConfigError,
    Message,
    MessageTooLarge,
    Node,
    PeerLost,
    Received,
    Refused,
    SendError,
    UsageError,
)
from redpoll.serializers import msgpack
from redpoll.wiring.directory import protocol
from redpoll.wiring.directory import server as module
from redpoll.wiring.directory.entries import Entry, Key, stays_here
from redpoll.wiring.directory.server import Directory
from redpoll.wiring.directory.table import Bounds, Outcome
from tests.node.support import turns, until, within
from tests.ports import free_port
from tests.wiring.directory.support import HERE, OWNER, THERE

pytestmark = pytest.mark.asyncio

E: Key = ("exchange", "E")
F: Key = ("exchange", "F")
ITEM = Entry(*E, HERE, "distribute", OWNER)

#: Seconds: short where a test waits for its end, long where it must not come.
SHORT = 0.3
LONG = 60.0


class Client:
    """A client that says what it is told to."""

    def __init__(self, directory: Directory, client: bytes | None = None, run: int = 1, token: bytes = b"") -> None:
        self.node: Node[Any] = Node(self._told, listen=False)
        self.news: list[tuple[Key, Entry | None]] = []
        self.again = 0
        self._directory = directory.address
        self._hello = protocol.Hello(protocol.VERSION, client or os.urandom(16), run, token)

    def _told(self, message: Received[Any]) -> None:
        assert message.header == protocol.NEWS.header
        again, news = protocol.NEWS.read(message.data)
        self.again += again
        self.news += [(key, seen.entry) for key, seen in news]

    async def say(self, word: protocol.Word, data: bytes = b"") -> protocol.Answer:
        """Say a word."""
        answer = await within(self.node.request(Message(data, self._directory, header=word.header)))
        return protocol.read_answer(answer.data)

    async def hello(self) -> protocol.Welcome:
        """Be let in."""
        answer = await self.say(protocol.HELLO, protocol.HELLO.say(self._hello))
        assert not answer.problem, answer
        welcome: protocol.Welcome = protocol.HELLO.result(answer.value)
        return welcome

    async def register(self, *items: Entry) -> list[Outcome]:
        """Ask for names."""
        answer = await self.say(protocol.REGISTER, protocol.REGISTER.say(items))
        assert not answer.problem, answer
        return [result.outcome for result in protocol.REGISTER.result(answer.value)]

    async def look(self, word: protocol.Word, *keys: Key) -> list[tuple[Entry | None, bool] | None]:
        """Look names up, or watch them."""
        lookups = protocol.LOOKUP.result((await self.say(word, protocol.LOOKUP.say(keys))).value)
        return [None if seen is None else (seen.entry, seen.known) for seen in lookups]


@asynccontextmanager
async def client(directory: Directory, *args: Any, hello: bool = True, **more: Any) -> AsyncIterator[Client]:
    """A client that has said hello."""
    made = Client(directory, *args, **more)
    async with made.node:
        if hello:
            await made.hello()
        yield made


def serve(**options: Any) -> Directory:
    """A directory on a free port."""
    return Directory(port=free_port(), **{"lease": LONG, **options})


async def test_names_come_and_go() -> None:
    """What one client registers another finds, is told of, and sees go."""
    async with serve() as directory, client(directory) as one, client(directory) as two:
        assert await two.look(protocol.WATCH, E) == [(None, False)]
        assert await one.register(ITEM) == [Outcome.REGISTERED]
        entry = replace(ITEM, run=1)
        assert await two.look(protocol.LOOKUP, E, F) == [(entry, True), (None, False)]
        assert directory.entries == (entry,)
        await until(lambda: two.news == [(E, entry)], "the news")
        assert await two.register(ITEM) == [Outcome.TAKEN]
        assert (await one.say(protocol.UNREGISTER, protocol.LOOKUP.say([E, F]))).value == [True, False]
        await until(lambda: two.news == [(E, entry), (E, None)], "the end")
        await two.say(protocol.UNWATCH, protocol.LOOKUP.say([E]))
        await one.register(ITEM)
        assert (await two.look(protocol.LOOKUP, E))[0] == (entry, True)
        assert len(two.news) == 2


async def test_a_lost_link_is_seen_at_once() -> None:
    """The names of a client whose link is lost are suspect at once, and gone when the lease is over."""
    async with serve(lease=SHORT) as directory, client(directory) as two:
        async with client(directory) as one:
            await one.register(ITEM)
            await two.look(protocol.WATCH, E)
        await until(lambda: (E, None) in two.news, "the end of the lease")
        entry = replace(ITEM, run=1)
        assert [seen and seen.suspect for _, seen in two.news] in ([True, None], [False, True, None])
        assert two.news[-2][1] == Entry(*E, HERE, entry.style, OWNER, 1, suspect=True)
        assert directory.entries == ()


async def test_a_client_that_says_goodbye() -> None:
    """Its names are gone at once."""
    async with serve() as directory, client(directory) as one:
        await one.register(ITEM)
        await one.say(protocol.BYE)
        assert (directory.entries, directory.clients) == ((), 0)
        assert (await one.say(protocol.RENEW, protocol.RENEW.say(0))).problem == "hello"


async def test_who_comes_again_has_all_at_once() -> None:
    """A client over a new link, and one that says hello twice, have their names back; what they leave out is gone."""
    async with serve() as directory, client(directory) as two:
        await two.look(protocol.WATCH, E)
        async with client(directory, OWNER) as one:
            await one.register(ITEM, replace(ITEM, kind=F[0], name=F[1]))
            await one.hello()
            assert await one.register(ITEM, replace(ITEM, kind=F[0], name=F[1])) == [Outcome.REGISTERED] * 2
            assert (await one.say(protocol.RENEW, protocol.RENEW.say(2))).value is True
            assert directory._table.holders == directory.clients == 2
        async with client(directory, OWNER) as one:
            assert await one.register(ITEM) == [Outcome.REGISTERED]
            await one.say(protocol.SETTLED)
            assert [entry.key for entry in directory.entries] == [E]
            assert (await one.say(protocol.RENEW, protocol.RENEW.say(2))).value is False


async def test_a_second_hello_is_not_seen() -> None:
    """Those who watch are not told of a client that says hello and registers all it had over the same link."""
    async with serve() as directory, client(directory) as one, client(directory) as two:
        await one.register(ITEM)
        await two.look(protocol.WATCH, E, F)
        await one.hello()
        await one.register(ITEM)
        await one.say(protocol.SETTLED)
        await one.register(replace(ITEM, kind=F[0], name=F[1]))
        await until(lambda: two.news, "news")
        assert two.news == [(F, replace(ITEM, kind=F[0], name=F[1], run=1))]


async def test_a_later_run() -> None:
    """A later run of an owner takes its names over; the former one is told to look."""
    async with serve() as directory, client(directory, run=1) as old, client(directory, run=2) as new:
        await old.register(ITEM)
        assert await new.register(replace(ITEM, address=THERE)) == [Outcome.REGISTERED]
        await until(lambda: old.again, "the word that something was taken")
        assert await old.register(ITEM) == [Outcome.TAKEN]


async def test_the_first_lease() -> None:
    """A name that nobody has is unknown for a lease, after which those who watch it are told."""
    async with serve(lease=SHORT) as directory, client(directory) as one:
        settles_in = (await one.hello()).settles_in
        assert 0 <= settles_in < 2 * SHORT
        await one.look(protocol.WATCH, E)
        await until(lambda: (E, None) in one.news, "the end of the first lease")
        assert await one.look(protocol.LOOKUP, E) == [(None, True)]
        assert (await one.hello()).settles_in == 0


async def test_silence_is_found() -> None:
    """A client with a link that does not renew loses its names."""
    async with serve(lease=SHORT) as directory, client(directory) as one:
        await one.register(ITEM)
        await until(lambda: not directory.entries, "the end of the lease")
        assert (await one.say(protocol.RENEW, protocol.RENEW.say(1))).value is False


async def test_static_entries() -> None:
    """What the directory was given is there from the start."""
    static = Entry("queue", "Q", THERE)
    async with serve(entries=[static]) as directory, client(directory) as one:
        assert [entry.static for entry in directory.entries] == [True]
        assert [found and found[0] for found in await one.look(protocol.LOOKUP, ("queue", "Q"))] == list(
            directory.entries
        )


async def test_a_list_comes_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """All entries are had in order, some at a time."""
    monkeypatch.setattr(protocol, "PAGE", 2)
    async with serve(entries=[Entry("queue", name, THERE) for name in "CAB"]) as directory, client(directory) as one:
        pages = []
        last = None
        while page := protocol.LIST.result((await one.say(protocol.LIST, protocol.LIST.say(last))).value):
            pages.append([entry.name for entry in page])
            last = page[-1].key
    assert pages == [["A", "B"], ["C"]]


async def test_a_token() -> None:
    """Who shows another token, or none, is told so, has no other word heard, and is logged once a second."""
    async with serve(token="sesame") as directory:
        async with client(directory, token=b"sesame") as one:
            assert await one.register(ITEM) == [Outcome.REGISTERED]
        for token, said in ((b"", "none"), (b"simsim", "a wrong one")):
            async with client(directory, token=token, hello=False) as other:
                answer = await other.say(protocol.HELLO, protocol.HELLO.say(other._hello))
                assert (answer.problem, said in answer.text) == ("token", True)
                assert (await other.say(protocol.LOOKUP, protocol.LOOKUP.say([E]))).problem == "hello"


async def test_who_shows_no_token_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """However often a stranger tries, there is a line a second, without what it showed."""
    async with serve(token="sesame") as directory, client(directory, token=b"simsim", hello=False) as one:
        with caplog.at_level(logging.WARNING, "redpoll.wiring"):
            for _ in range(20):
                await one.say(protocol.HELLO, protocol.HELLO.say(one._hello))
    assert 1 <= len(caplog.records) < 20
    assert "sim" not in caplog.text


async def test_nothing_before_a_hello() -> None:
    """Every other word is answered with the wish for a hello."""
    async with serve() as directory, client(directory, hello=False) as one:
        for word in (protocol.REGISTER, protocol.WATCH, protocol.LIST, protocol.RENEW, protocol.BYE):
            assert (await one.say(word)).problem == "hello"
        assert directory.clients == 0


async def test_another_version() -> None:
    """A hello of another version is told which one is spoken here."""
    async with serve() as directory, client(directory, hello=False) as one:
        answer = await one.say(protocol.HELLO, msgpack.encode([99]))
        assert (answer.problem, "version 1" in answer.text) == ("version", True)


async def test_what_is_no_word() -> None:
    """Other messages, and words that cannot be read, are refused; the directory goes on."""
    async with serve() as directory, client(directory) as one:
        with pytest.raises(Refused, match="its own protocol"):
            await one.say(protocol.Word(b"weather"))
        with pytest.raises(Refused, match="its own protocol"):
            await within(one.node.send(Message(b"", directory.address, header=protocol.LIST.header)))
        with pytest.raises(Refused, match="a list"):
            await one.say(protocol.REGISTER, msgpack.encode({"a": 1}))
        assert await one.register(ITEM) == [Outcome.REGISTERED]


async def test_too_many_names_at_once() -> None:
    """A message about more names than one may be about is refused, and nothing of it done."""
    async with serve() as directory, client(directory) as one:
        with pytest.raises(Refused, match="at most 256 names"):
            await one.register(*[replace(ITEM, kind="queue", name=f"Q{number}") for number in range(257)])
        assert directory.entries == ()


async def test_a_message_that_is_too_large() -> None:
    """Nothing above a MiB is taken, and the others do not notice."""
    async with serve() as directory, client(directory) as one, client(directory) as two:
        with pytest.raises((MessageTooLarge, SendError)):
            await one.say(protocol.LOOKUP, bytes(2 * 1024 * 1024))
        assert await two.register(ITEM) == [Outcome.REGISTERED]


async def test_strangers_fill_no_memory() -> None:
    """Of who has not said hello nothing is kept, however much it sends; what is under way is bounded as at any node."""
    async with serve() as directory, client(directory, hello=False) as one, client(directory) as two:
        assert directory._node.config.memory_limit == 256 * 1024 * 1024
        body = protocol.REGISTER.say(
            [replace(ITEM, kind="queue", name=f"{number:03}" + "x" * 250) for number in range(256)]
        )
        answers = [
            one.node.request(Message(body, directory.address, header=protocol.REGISTER.header)) for _ in range(200)
        ]
        for answer in answers:
            assert protocol.read_answer((await within(answer)).data).problem == "hello"
        assert directory.entries == ()
        assert (directory.clients, directory._table.holders) == (1, 1)
        assert directory._node.stats().memory_held == 0
        assert await two.register(ITEM) == [Outcome.REGISTERED]


async def test_addresses_that_nobody_can_dial() -> None:
    """A wildcard and port 0 are refused, each by itself."""
    async with serve() as directory, client(directory) as one:
        items = [replace(ITEM, address=Address("tcp", *place)) for place in (("0.0.0.0", 5), ("10.0.0.1", 0))]
        assert await one.register(*items, ITEM) == [Outcome.NOWHERE, Outcome.NOWHERE, Outcome.REGISTERED]


async def test_a_loopback_address_from_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is on another machine cannot register what only that machine can reach."""
    remote = "10.0.0.7"
    async with serve() as directory:
        # As if the link came from there.
        monkeypatch.setattr(
            "redpoll.wiring.directory.server.stays_here", lambda address: stays_here(address) and address.port < 5000
        )
        monkeypatch.setattr(
            module._Client,
            "remote",
            property(lambda self: Address("tcp", remote, 9999), lambda self, value: None),
            raising=False,
        )
        async with client(directory, hello=False) as one:
            welcome = await one.hello()
            assert (welcome.near, welcome.host) == (False, remote)
            there = replace(ITEM, name=F[1], kind=F[0], address=Address("tcp", "10.0.0.7", 4000))
            assert await one.register(ITEM, there) == [Outcome.LOOPBACK, Outcome.REGISTERED]


async def test_bounds() -> None:
    """At a bound names are refused, and watches left out, one by one; the rest goes on."""
    async with serve(bounds=Bounds(entries=1, watches=1)) as directory, client(directory) as one:
        assert await one.register(ITEM, replace(ITEM, kind=F[0], name=F[1])) == [Outcome.REGISTERED, Outcome.FULL]
        assert await one.look(protocol.WATCH, E, F) == [(replace(ITEM, run=1), True), None]


async def test_who_does_not_listen_is_told_the_latest() -> None:
    """News to a client that does not take them wait as one for each name, whatever happens meanwhile."""
    taking = asyncio.Event()
    heard: list[Any] = []

    async def told(message: Received[Any]) -> None:
        await taking.wait()
        heard.extend(protocol.NEWS.read(message.data)[1])

    async with serve() as directory, client(directory) as one:
        slow = Client(directory)
        slow.node = Node(told, listen=False)
        async with slow.node:
            await slow.hello()
            await slow.look(protocol.WATCH, E, F)
            for address in (HERE, THERE) * 20:
                await one.register(replace(ITEM, address=address), replace(ITEM, name=F[1], kind=F[0], address=address))
            taking.set()
            last = {key: replace(ITEM, name=key[1], kind=key[0], address=THERE, run=1) for key in (E, F)}
            await until(lambda: {key: seen.entry for key, seen in heard} == last, "the latest")
            assert len(heard) <= 5


async def test_news_that_are_refused_are_told_with_the_next() -> None:
    """What a client did not take is not forgotten."""
    refusing = True
    heard: list[Any] = []

    def told(message: Received[Any]) -> None:
        if refusing:
            message.refuse("not now")
        else:
            heard.extend(key for key, _ in protocol.NEWS.read(message.data)[1])

    async with serve() as directory, client(directory) as one:
        picky = Client(directory)
        picky.node = Node(told, listen=False)
        async with picky.node:
            await picky.hello()
            await picky.look(protocol.WATCH, E, F)
            await one.register(ITEM)
            await until(lambda: one.node.stats().received, "the answer")
            await until(lambda: picky.node.stats().refused, "the refusal")
            refusing = False
            await one.register(replace(ITEM, kind=F[0], name=F[1]))
            await until(lambda: set(heard) == {E, F}, "both")


async def test_who_is_lost_with_its_news_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A client that froze, and whose link is lost before it took its news, is nothing that the directory warns of."""
    reached, never = asyncio.Event(), asyncio.Event()

    async def told(_: Received[Any]) -> None:
        reached.set()
        await never.wait()

    async with serve() as directory, client(directory) as one:
        frozen = Client(directory)
        frozen.node = Node(told, listen=False)
        async with frozen.node:
            await frozen.hello()
            await frozen.look(protocol.WATCH, E)
            await one.register(ITEM)
            await within(reached.wait())
            for connection in list(frozen.node._peers.connections):
                connection.give_up(PeerLost(None, "frozen"))
            await until(lambda: len(directory._clients) == 1, "the loss")
            never.set()
            gc.collect()
            await turns()
    assert "nobody awaited" not in caplog.text


async def test_its_life() -> None:
    """It listens while it runs, can be waited for, and can be stopped twice."""
    directory = serve()
    assert (directory.listening, directory.entries) == ((), ())
    await directory.stop()
    directory = serve()
    await directory.start()
    with pytest.raises(UsageError):
        await directory.start()
    waiting = asyncio.ensure_future(directory.serve_forever())
    await asyncio.sleep(0)
    assert directory.listening == (directory.address,)
    await directory.stop()
    await directory.stop()
    await within(waiting)
    with pytest.raises(Closed):
        _ = directory.address


async def test_a_port_that_is_in_use() -> None:
    """It says that it cannot listen, and leaves nothing open."""
    async with serve() as directory:
        with pytest.raises(ConfigError, match="port"):
            await Directory(port=directory.address.port).start()


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"lease": 0}, "lease"),
        ({"lease": 0.01}, "lease"),
        ({"lease": 5000}, "lease"),
        ({"lease": "long"}, "lease"),
        ({"token": ""}, "token"),
        ({"host": 5}, "host"),
        ({"entries": [Entry("topic", "E", HERE)]}, "entries"),  # type: ignore[arg-type]
        ({"entries": [Entry("queue", "", HERE)]}, "entries"),
        ({"entries": [Entry("queue", "Q", Address("tcp", "::", 5))]}, "entries"),
    ],
)
async def test_options(options: dict[str, Any], field: str) -> None:
    """An option with a value that it cannot have is named."""
    with pytest.raises(ConfigError) as caught:
        Directory(**options)
    assert caught.value.field == field
