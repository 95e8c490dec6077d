"""What who reaches the port of a wiring can do there without the token, and who may have what another owner had."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redpoll import GLOBAL, PROCESS, TLS, Config, Message, Node, Wiring
from redpoll.errors import LinkError, NameTaken, NotAuthorized, RedpollError, Refused, UnknownName
from redpoll.testing import FaultProxy
from redpoll.testing.certificates import Certificates
from redpoll.wiring import Gap, Limits, resolver
from redpoll.wiring.directory import Directory, DirectoryClient
from redpoll.wiring.protocol import DATA, VERSION, WORD, check_answer, decode, encode
from tests.ports import free_port
from tests.wiring.support import PATIENCE, directory, get, until

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("apart")]

HELLO = {"word": "hello", "version": VERSION, "run": b"12345678"}


class Stranger:
    """A node that says to a wiring what it likes, and lets itself be bound."""

    def __init__(self, wiring: Wiring | str, room: int = 1, **options: Any) -> None:
        self._where = wiring if isinstance(wiring, str) else wiring.address
        self._room = room
        self.opened = 0
        self.node: Node[bytes] = Node(self._answer, port=0, **options)

    def _answer(self, message: Any) -> bytes:
        word = decode(message.data)
        if word["word"] == "open":
            self.opened += 1
            return encode({"messages": self._room, "bytes": None})
        return encode(HELLO)

    async def ask(self, word: dict[str, Any]) -> dict[str, Any]:
        """Ask."""
        answer = await self.node.request(Message(encode(word), self._where, header=WORD), timeout=PATIENCE)
        return check_answer(decode(answer.data))

    async def open(self, exchange: str, queue: str, **other: Any) -> dict[str, Any]:
        """Open a pipe, as the owner of a GLOBAL exchange does."""
        word = {"word": "open", "pipe": 7, "exchange": exchange, "is_global": True, "queue": queue}
        return await self.ask(word | {"first": 0, "at": 0, "missed": 0} | other)

    async def bind(self, exchange: str, queue: str) -> dict[str, Any]:
        """Bind an exchange to a queue, as the owner of a GLOBAL queue does."""
        return await self.ask({"word": "bind", "exchange": exchange, "queue": queue, "here": True, "is_global": True})

    async def send(self, pipe: int, message: bytes) -> None:
        """Send a message by a pipe."""
        await self.node.send(Message(message, self._where, header=DATA.pack(b"D", pipe, 0, 1, 1, 0)))


# The token


@pytest.mark.parametrize("shown", [None, b"", b"x" * 32, "text"])
async def test_who_has_no_token(shown: Any) -> None:
    """Who does not show the token of a wiring is told nothing of it, and neither gets nor gives a message."""
    async with (
        Directory(port=0, lease=0.5, token="sesame") as names,
        Wiring(names.address, token="sesame") as wiring,
        Wiring(names.address, token="sesame") as reader,
    ):
        exchange = await wiring.create_exchange("E", scope=GLOBAL)
        queue = await reader.create_queue("Q", scope=GLOBAL, gaps=True)
        await reader.bind("E", "Q")
        for victim in (wiring, reader):
            stranger = Stranger(victim)
            async with stranger.node:
                if shown is None:
                    told = await stranger.ask(HELLO)
                    assert set(told) == {"word", "version", "run", "token"}
                else:
                    with pytest.raises(NotAuthorized):
                        await stranger.ask(HELLO | {"proof": shown})
                for asked in (stranger.open("E", "Q"), stranger.bind("E", "EVIL"), stranger.ask({"word": "describe"})):
                    with pytest.raises(Refused, match="say hello first"):
                        await asked
                await stranger.node.send(Message(encode({"word": "bye"}), victim.address, header=WORD))
                with pytest.raises(Refused):
                    await stranger.send(1, b"forged")
                assert not stranger.opened
        await exchange.send(b"true")
        assert await queue.receive(PATIENCE) == b"true"
        assert (queue.stats.gaps, exchange.stats.pipes) == (0, 1)


async def test_what_a_proof_is_good_for() -> None:
    """What one wiring is shown lets nobody else in, elsewhere or there, and shows the token to nobody."""
    async with Directory(port=0, token="sesame") as names:
        # Somebody else listens where the directory says that an owner does, and keeps what it is shown.
        shown: list[dict[str, Any]] = []

        def listen(message: Any) -> bytes:
            shown.append(decode(message.data))
            return encode(HELLO | {"proof": b"x" * 32})

        async with (
            Wiring(names.address, token="sesame") as wiring,
            Wiring(names.address, token="sesame") as other,
            DirectoryClient(names.address, token="sesame") as client,
            Node(listen, port=0) as fake,
        ):
            await client.register("exchange", "E", fake.address)
            await wiring.create_queue("Q")
            with pytest.raises(NotAuthorized, match="it does not prove that it has the token") as caught:
                await wiring.bind("E", "Q", wait=0)
            assert "token of their directory" in str(caught.value.hint)
            proofs = [word["proof"] for word in shown if "proof" in word]
            assert proofs
            assert "sesame" not in str(shown)
            for victim in (wiring, other):
                stranger = Stranger(victim)
                async with stranger.node:
                    for word in shown:
                        if "proof" in word:
                            with pytest.raises(NotAuthorized):
                                await stranger.ask(word)


@pytest.mark.parametrize(
    ("own", "other", "text"),
    [
        ("sesame", None, "it does not prove that it has the token"),
        (None, "sesame", "it requires a token, and this end has none"),
        ("sesame", "open", "the tokens differ"),
    ],
)
async def test_tokens_that_differ(own: str | None, other: str | None, text: str) -> None:
    """Where one wiring has a token and another has none, or a different one, who dials is told."""
    async with (
        directory() as names,
        Wiring(names.address, token=own) as wiring,
        Wiring(names.address, token=other) as there,
    ):
        await there.create_exchange("E", scope=GLOBAL)
        await wiring.create_queue("Q")
        with pytest.raises(NotAuthorized, match=text) as caught:
            await wiring.bind("E", "Q", wait=0)
        assert isinstance(caught.value, LinkError)
        assert not wiring.bindings


async def test_a_token_that_is_shared() -> None:
    """Wirings with the same token, as text or bytes, are wired both ways, and again after the link was lost."""
    async with Directory(port=0, lease=0.5, token="sesame") as names:
        port = free_port()
        async with (
            FaultProxy(f"127.0.0.1:{port}") as proxy,
            Wiring(names.address, token="sesame") as one,
            Wiring(names.address, token="sesame", port=port, advertise=str(proxy.address)) as two,
        ):
            there, back = (
                await one.create_exchange("THERE", scope=GLOBAL),
                await two.create_exchange("BACK", scope=GLOBAL),
            )
            at_two, at_one = await two.create_queue("2", scope=GLOBAL), await one.create_queue("1", scope=GLOBAL)
            bindings = [await one.bind("THERE", "2"), await one.bind("BACK", "1")]
            for _ in range(2):
                await there.send(b"x")
                await back.send(b"y")
                assert await get(at_two, 1) == [b"x"]
                assert await get(at_one, 1) == [b"y"]
                ups: list[object] = []
                one.events.pipe_up = ups.append
                proxy.cut()
                await until(lambda ups=ups: len(ups) == 2)  # type: ignore[misc]
            assert [each.state for each in bindings] == ["up", "up"]


@pytest.mark.parametrize("token", ["sesame", None])
async def test_describe_to_others(token: str | None) -> None:
    """LOCAL names are shown to who has the token alone; without one to nobody else."""
    async with Directory(port=0, token=token) as names, Wiring(names.address, token=token) as wiring:
        for kind in (wiring.create_exchange, wiring.create_queue):
            await kind("LOCAL")
            await kind("PROCESS", scope=PROCESS)
            await kind("GLOBAL", scope=GLOBAL)
        for name in ("LOCAL", "PROCESS", "GLOBAL"):
            await wiring.bind("GLOBAL", name)
        own = wiring.describe()
        assert [each["name"] for each in own["queues"]] == ["LOCAL", "PROCESS", "GLOBAL"]
        stranger = Stranger(wiring)
        async with stranger.node:
            if token is None:
                told = await stranger.ask({"word": "describe"})
                assert [each["name"] for each in told["exchanges"]] == ["PROCESS", "GLOBAL"]
                assert [each["name"] for each in told["queues"]] == ["PROCESS", "GLOBAL"]
                pipes = told["exchanges"][1]["pipes"]
                assert [each["queue"] for each in pipes] == [None, None, "GLOBAL"]
                assert "LOCAL" not in str(told)
            else:
                with pytest.raises(Refused):
                    await stranger.ask({"word": "describe"})


# Names


async def test_a_local_queue_that_is_bound() -> None:
    """A queue that others do not see gets messages of the exchange that it is bound to alone, however a stranger calls it."""
    async with directory() as names, Wiring(names.address) as wiring, Wiring(names.address) as reader:
        exchange = await wiring.create_exchange("E", scope=GLOBAL)
        queue = await reader.create_queue("Q")
        await reader.create_exchange("OWN")
        await reader.bind("E", "Q")
        await reader.bind("OWN", "Q")
        stranger = Stranger(reader)
        async with stranger.node:
            await stranger.ask(HELLO)
            for name in ("E", "OWN", "OTHER"):
                for is_global in (False, True):
                    with pytest.raises(UnknownName):
                        await stranger.open(name, "Q", is_global=is_global)
        await exchange.send(b"true")
        assert await queue.receive(PATIENCE) == b"true"
        assert queue.stats.pipes == 2


async def test_a_stream_is_its_owners() -> None:
    """Who is let in, and has not got the name of an exchange, does not end what its owner sends; the owner goes on."""
    async with directory() as names, Wiring(names.address) as wiring, Wiring(names.address) as reader:
        exchange = await wiring.create_exchange("E", scope=GLOBAL)
        queue = await reader.create_queue("Q", scope=GLOBAL, gaps=True)
        await reader.bind("E", "Q")
        stranger = Stranger(reader)
        async with stranger.node:
            await stranger.ask(HELLO)
            with pytest.raises(NameTaken, match="another owner has it"):
                await stranger.open("E", "Q")
            await exchange.send(b"true")
            assert await queue.receive(PATIENCE) == b"true"
            assert queue.stats == (1, 0, 0, 0, 1)


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("run", [HELLO["run"], None])
async def test_a_claimed_identity_takes_no_stream(
    run: bytes | None, redpoll_pki: Certificates, *, encrypted: bool
) -> None:
    """Who claims to be a live owner, in another run or in its own, opens and ends no stream of that; it goes on."""

    def tls(name: str) -> dict[str, Any]:
        return {"tls": TLS(certificate=redpoll_pki.issue(name)), "encryption": True} if encrypted else {}

    ours, theirs = tls("ours"), tls("theirs")
    async with (
        Directory(port=0, **ours) as names,
        Wiring(names.address, **ours) as wiring,
        Wiring(names.address, **ours) as reader,
    ):
        exchange = await wiring.create_exchange("E", scope=GLOBAL)
        queue = await reader.create_queue("Q", scope=GLOBAL, gaps=True)
        await reader.bind("E", "Q")
        (pipe,) = exchange.pipes
        stranger = Stranger(reader, identity=wiring.identity, **theirs)
        async with stranger.node:
            await stranger.ask(HELLO | {"run": run or wiring._board.run})
            for number in (pipe.number, pipe.number + 1000):
                if run is None and number != pipe.number:
                    assert await stranger.open("E", "Q", pipe=number) == {"elsewhere": pipe.number, "lost": False}
                else:
                    with pytest.raises(NameTaken, match="another owner has it"):
                        await stranger.open("E", "Q", pipe=number)
                if run or encrypted:
                    # In plain, processes of one host that say that they are one run are taken for that.
                    await stranger.ask({"word": "close", "pipe": number, "queue": "Q", "at": 0})
                    await stranger.ask({"word": "end", "pipe": number})
            await exchange.send(b"true")
            assert await queue.receive(PATIENCE) == b"true"
            assert queue.stats == (1, 0, 0, 0, 1)


async def test_malformed_words_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """Who sends what is no word is refused with the reason; the log names the peer in one warning a second, and no more."""
    async with directory() as names, Wiring(names.address) as wiring:
        stranger = Stranger(wiring)
        async with stranger.node:
            await stranger.ask(HELLO)
            caplog.clear()
            for word, problem in (
                ({"word": "nonsense"}, "nonsense"),
                ({"x": 1}, "expected the field word to be str, not NoneType"),
                ({"word": "open"}, "pipe"),
            ):
                with pytest.raises(Refused, match=problem):
                    await stranger.ask(word)
            (record,) = [each for each in caplog.records if each.name.startswith("redpoll")]
            assert (record.name, record.levelname, record.exc_info) == ("redpoll.wiring", "WARNING", None)
            assert record.getMessage().startswith(f"refused a message from {stranger.node.address} (127.0.0.1:")


async def test_a_restart_over_a_half_open_link() -> None:
    """An owner that starts again with its identity is followed at once, though its former link is dead and not closed."""
    identity = b"an owner's name."
    port = free_port()
    async with directory() as names, FaultProxy(f"127.0.0.1:{port}") as proxy, Wiring(names.address) as reader:
        queue = await reader.create_queue("Q", scope=GLOBAL, gaps=True)
        async with Wiring(
            names.address, port=port, advertise=str(proxy.address), config=Config(identity=identity, port=0)
        ) as former:
            old = await former.create_exchange("E", scope=GLOBAL)
            await reader.bind("E", "Q")
            await old.send(b"old")
            assert await queue.receive(PATIENCE) == b"old"
            proxy.freeze()
            async with Wiring(names.address, config=Config(identity=identity, port=0)) as later:
                new = await later.create_exchange("E", scope=GLOBAL)
                await later.bind("E", "Q")
                await new.send(b"new")
                # The dead link is not found before three times `keepalive`.
                assert await get(queue, 2) == [Gap("E", 0, restarted=True), b"new"]
            proxy.thaw()


async def test_forged_numbers() -> None:
    """Numbers that no stream reaches open no pipe, and however many messages are said to be missing it can be described."""
    async with directory() as names, Wiring(names.address) as wiring:
        await wiring.create_queue("Q", scope=GLOBAL)
        stranger = Stranger(wiring)
        async with stranger.node:
            await stranger.ask(HELLO)
            for wrong in (
                {"pipe": 2**32},
                {"first": 2**64 - 1},
                {"at": 2**53 + 1},
                {"missed": 2**64 - 1},
                {"pipe": -1},
            ):
                with pytest.raises(Refused):
                    await stranger.open("E", "Q", **wrong)
            for pipe in range(3):
                await stranger.open(f"E{pipe}", "Q", pipe=pipe)
                header = DATA.pack(b"D", pipe, 2**64 - 1, 1, 0, 0)
                await stranger.node.send(Message(b"", wiring.address, header=header))
            (told,) = (await stranger.ask({"word": "describe"}))["queues"]
            assert told["missing"] == wiring.describe()["queues"][0]["missing"] == 2**63 - 1


async def test_what_waits_is_for_the_owner() -> None:
    """What an exchange keeps for a GLOBAL queue whose owner is gone for a moment is for that one, not for who names it."""
    port = free_port()
    async with (
        directory() as names,
        FaultProxy(f"127.0.0.1:{port}") as proxy,
        Wiring(names.address, port=port, advertise=str(proxy.address)) as wiring,
        Wiring(names.address) as owner,
    ):
        exchange = await wiring.create_exchange("E", scope=GLOBAL)
        queue = await owner.create_queue("Q", scope=GLOBAL, limits=Limits(messages=5))
        binding = await owner.bind("E", "Q")
        proxy.refuse()
        proxy.cut()
        await until(lambda: binding.state == "lost")
        await exchange.send_many([b"%d" % number for number in range(10)])
        stranger = Stranger(f"127.0.0.1:{port}", room=100)
        async with stranger.node:
            await stranger.ask(HELLO)
            await stranger.bind("E", "Q")
            assert stranger.opened
            await exchange.send(b"10")
            assert exchange.stats.waiting == 11
        proxy.admit()
        assert await get(queue, 11) == [b"%d" % number for number in range(11)]
        assert queue.stats.missing == 0


@pytest.mark.parametrize("binder", ["exchange", "queue", "third"])
async def test_a_name_that_moves_while_its_owner_sends(binder: str) -> None:
    """Where an exchange has a new owner by the directory, the former one's messages are not counted as sent to anybody."""
    async with Directory(port=0, lease=0.5) as names, FaultProxy(names) as proxy:
        async with (
            Wiring(proxy.address) as former,
            Wiring(names.address) as reader,
            Wiring(names.address) as third,
            Wiring(names.address) as later,
        ):
            lost: list[str] = []
            former.events.pipe_lost = lambda binding, error: lost.append(type(error).__name__)
            old = await former.create_exchange("E", scope=GLOBAL)
            queue = await reader.create_queue("Q", scope=GLOBAL, gaps=True)
            await {"exchange": former, "queue": reader, "third": third}[binder].bind("E", "Q")
            await old.send_many([b"old"] * 10)
            assert await get(queue, 10) == [b"old"] * 10
            proxy.refuse()
            proxy.cut()
            await until(lambda: not names.entries or names.entries[0].name != "E" or names.entries[0].suspect)
            new = await later.create_exchange("E", scope=GLOBAL)
            await later.bind("E", "Q")
            await new.send(b"new")
            assert await get(queue, 2) == [Gap("E", 0, restarted=True), b"new"]
            await until(lambda: not old.stats.pipes)
            await old.send(b"nobody")
            stats = old.stats
            assert (stats.sent, stats.unbound, stats.unconfirmed) == (11, 1, 0)
            proxy.admit()
            await until(lambda: former.directory_state == "up")
            if binder == "exchange":
                # It tries again, in vain, and is told why.
                await until(lambda: "NameTaken" in lost)
            for number in range(20):
                await new.send(b"%d" % number)
                assert await queue.receive(PATIENCE) == b"%d" % number
            assert not old.stats.pipes


async def test_a_name_that_moves_and_nobody_can_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the directory does not answer a stream that is up stays its owner's, and one that is lost may be followed."""
    monkeypatch.setattr(resolver, "_LOOKUP", 0.2)
    port = free_port()
    async with (
        Directory(port=0, lease=0.5) as names,
        FaultProxy(names) as way,
        FaultProxy(f"127.0.0.1:{port}") as proxy,
    ):
        async with (
            Wiring(names.address, port=port, advertise=str(proxy.address)) as wiring,
            Wiring(way.address) as reader,
        ):
            exchange = await wiring.create_exchange("E", scope=GLOBAL)
            queue = await reader.create_queue("Q", scope=GLOBAL)
            await reader.bind("E", "Q")
            way.refuse()
            way.cut()
            await until(lambda: reader.directory_state == "lost")
            stranger = Stranger(reader)
            async with stranger.node:
                await stranger.ask(HELLO)
                with pytest.raises(NameTaken):
                    await stranger.open("E", "Q")
                await exchange.send(b"1")
                assert await queue.receive(PATIENCE) == b"1"
                proxy.refuse()
                proxy.cut()
                await until(lambda: reader.bindings[0].state == "lost")
                assert (await stranger.open("E", "Q"))["messages"]


async def test_who_goes_while_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe that is given up while the directory is asked whose it is, or whose owner goes, is not opened."""
    monkeypatch.setattr(resolver, "_LOOKUP", 1.0)
    async with directory() as names, FaultProxy(names) as way, Wiring(names.address) as wiring:
        async with Wiring(way.address) as reader:
            await wiring.create_exchange("E", scope=GLOBAL)
            queue = await reader.create_queue("Q", scope=GLOBAL)
            await reader.bind("E", "Q")
            for how in ("close", "end", "go"):
                stranger = Stranger(reader)
                async with stranger.node:
                    await stranger.ask(HELLO)
                    way.freeze()
                    opening = asyncio.ensure_future(stranger.open("E", "Q"))
                    await until(lambda: reader._board.incoming._opening)
                    if how != "go":
                        await stranger.ask({"word": how, "pipe": 7, "queue": "Q", "at": 0})
                        way.thaw()
                        with pytest.raises(RedpollError):
                            await opening
                way.thaw()
                await asyncio.gather(opening, return_exceptions=True)
                await until(lambda: not reader._board.incoming._opening)
                assert queue.stats.pipes == 1
                assert queue.stats.gaps == 0
