"""Clients of a directory that comes, goes, and is started again."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest

from redpoll import TLS, Address, Closed, ConfigError, Received, RedpollError, TLSError, UsageError
from redpoll.errors import DirectoryUnavailable, NameTaken, NotAuthorized, WiringError
from redpoll.testing import FaultProxy
from redpoll.testing.certificates import Certificates
from redpoll.wiring.directory import protocol
from redpoll.wiring.directory.client import DirectoryClient
from redpoll.wiring.directory.entries import Entry
from redpoll.wiring.directory.server import Directory
from redpoll.wiring.directory.table import Bounds
from redpoll.wiring.names import Style
from tests.interop.raw import raw_listener
from tests.node.support import PATIENCE, make, until, within
from tests.ports import free_port
from tests.wiring.directory.support import HERE, OWNER, THERE

pytestmark = pytest.mark.asyncio

#: Seconds: short where a test waits for its end, long where it must not come.
SHORT = 0.5
LONG = 60.0


def serve(port: int | None = None, **options: Any) -> Directory:
    """A directory, on a free port."""
    return Directory(port=port or free_port(), **{"lease": LONG, **options})


def use(directory: Directory | FaultProxy | Address, **options: Any) -> DirectoryClient:
    """A client whose calls wait as long as a test does."""
    address = directory if isinstance(directory, Address) else directory.address
    return DirectoryClient(address, **{"timeout": PATIENCE, **options})


def nowhere() -> Address:
    """Where nobody listens yet."""
    return Address("tcp", "127.0.0.1", free_port())


def names(directory: Directory) -> list[str]:
    """What a directory knows and is not suspect."""
    return [entry.name for entry in directory.entries if not entry.suspect]


class Told:
    """What the hooks of a client were called with."""

    def __init__(self, client: DirectoryClient) -> None:
        self.calls: list[str] = []
        self.errors: list[RedpollError] = []
        client.lost = lambda error: self._note("lost", error)
        client.back = lambda: self.calls.append("back")
        client.taken = lambda kind, name, error: self._note(f"taken {kind} {name}", error)

    def _note(self, call: str, error: RedpollError) -> None:
        self.calls.append(call)
        self.errors.append(error)


async def test_names() -> None:
    """What one registers others find, see in the list, and are told of."""
    async with serve() as directory, use(directory, owner_identity=OWNER) as one, use(directory) as two:
        told: list[Entry | None] = []
        two.watch("exchange", "E", told.append)
        await one.register("exchange", "E", HERE, Style.BALANCE)
        await one.register("queue", "E", str(THERE), identity=b"i" * 16)
        found = await two.lookup("exchange", "E")
        assert found is not None
        assert (found.key, found.address, found.style, found.identity) == (("exchange", "E"), HERE, "balance", OWNER)
        listed = await two.list()
        assert listed == directory.entries
        assert [(entry.kind, entry.identity) for entry in listed] == [("exchange", OWNER), ("queue", b"i" * 16)]
        await until(lambda: told == [found], "the news")
        await one.register("exchange", "E", THERE)
        await one.unregister("exchange", "E")
        await one.unregister("exchange", "E")
        await until(lambda: told[-1] is None, "the end")
        assert (one.state, one.near, one.local_host, one.last_error) == ("up", True, "127.0.0.1", None)


async def test_a_list_of_many() -> None:
    """A list has all names, however many pages they take."""
    static = [Entry("queue", f"Q{number:05}", HERE) for number in range(2500)]
    async with serve(entries=static) as directory, use(directory) as one:
        assert [entry.name for entry in await one.list()] == [entry.name for entry in static]


async def test_a_clash() -> None:
    """A name that another has, who is there, is taken; the other keeps it, and the loser does not try again."""
    async with serve() as directory, use(directory) as one, use(directory) as two:
        await one.register("exchange", "E", HERE)
        with pytest.raises(NameTaken, match="'E' is taken: another owner has it"):
            await two.register("exchange", "E", THERE)
        await one.unregister("exchange", "E")
        await two.register("exchange", "F", THERE)
        assert names(directory) == ["F"]


async def test_a_name_whose_owner_is_gone() -> None:
    """A name of an owner that was killed is waited for, and had when the lease of that one is over."""
    async with (
        serve(lease=SHORT) as directory,
        FaultProxy(directory) as proxy,
        use(proxy) as one,
        use(directory) as two,
    ):
        await one.register("exchange", "E", HERE)
        proxy.refuse()
        proxy.cut()
        await until(lambda: not names(directory), "the loss")
        await two.ready()
        with pytest.raises(NameTaken, match="its owner is gone") as caught:
            await two.register("exchange", "E", THERE, timeout=0.1)
        assert "Config(identity=...)" in (caught.value.hint or "")
        await two.register("exchange", "E", THERE)
        assert names(directory) == ["E"]


async def test_until_a_name_is_free(caplog: pytest.LogCaptureFixture) -> None:
    """Who wants it waits for the lease of an owner that is gone on top of the timeout, and for nobody who is there."""
    async with (
        serve(lease=2.0) as directory,
        FaultProxy(directory) as proxy,
        use(proxy) as one,
        use(directory, timeout=0.5) as two,
    ):
        await one.register("exchange", "E", HERE)
        with pytest.raises(NameTaken, match="another owner has it"):
            await two.register("exchange", "E", THERE, until_free=True)
        proxy.refuse()
        proxy.cut()
        await until(lambda: not names(directory), "the loss")
        await two.register("exchange", "E", THERE, until_free=True)
        assert names(directory) == ["E"]
    assert caplog.text.count("the owner of the exchange 'E' is gone") == 1


async def test_an_owner_that_is_started_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later run of an owner has its names at once, and the former run is told that they are taken."""
    monkeypatch.setattr("redpoll.wiring.directory.session._RENEW_EVERY", LONG)
    async with serve() as directory, use(directory, owner_identity=OWNER) as old:
        told = Told(old)
        await old.register("exchange", "E", HERE)
        async with use(directory, owner_identity=OWNER) as new:
            await new.register("exchange", "E", THERE)
            await until(lambda: told.calls == ["taken exchange E"], "the hook")
            assert isinstance(told.errors[0], NameTaken)
            assert "lost a name at the directory" in caplog.text
            assert [entry.address for entry in directory.entries] == [THERE]


async def test_a_taken_name_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that was taken from us is ours again when who took it is gone."""
    monkeypatch.setattr("redpoll.wiring.directory.session._RENEW_EVERY", 0.05)
    async with serve() as directory, use(directory, owner_identity=OWNER) as old:
        await old.register("exchange", "E", HERE)
        async with use(directory, owner_identity=OWNER) as new:
            await new.register("exchange", "E", THERE)
        await until(lambda: [entry.address for entry in directory.entries] == [HERE], "the name")


async def test_a_registration_that_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that was registered as its owner gave up waiting is free at once, not with the next renewal."""
    monkeypatch.setattr("redpoll.wiring.directory.session._RENEW_EVERY", LONG)
    async with serve() as directory, use(directory) as one:
        await one.ready()
        registering = asyncio.ensure_future(one.register("exchange", "E", HERE))
        async with asyncio.timeout(PATIENCE):
            while not directory.entries:  # noqa: ASYNC110  # the answer must not have come
                await asyncio.sleep(0)
        registering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await registering
        await until(lambda: not directory.entries, "the end of the name")


async def test_a_directory_that_stood_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of owners that it could not hear meanwhile stay theirs: nobody is told that they are gone."""
    async with serve(lease=0.6) as directory, use(directory) as one, use(directory) as two:
        told: list[Entry | None] = []
        two.watch("exchange", "E", told.append)
        await one.register("exchange", "E", HERE)
        await until(lambda: told and told[-1] is not None, "the news")
        told.clear()
        renewals = 0
        renew = directory._table.renew

        def renewed(*args: Any) -> bool:
            nonlocal renewals
            renewals += 1
            return renew(*args)

        monkeypatch.setattr(directory._table, "renew", renewed)
        asyncio.get_running_loop().call_soon(time.sleep, 1.5)
        await asyncio.sleep(0)
        await until(lambda: renewals >= 4, "renewals")
        assert told == []


async def test_nobody_listens() -> None:
    """Where no directory is the error says why."""
    async with use(nowhere(), timeout=0.5) as one:
        with pytest.raises(DirectoryUnavailable, match="Connection refused") as caught:
            await one.list()
        assert caught.value.hint == "start one with: redpoll directory"
        assert not one.settled


async def test_one_that_says_nothing() -> None:
    """A directory that is halted, after it was met or before, is not told as one that is to be started."""
    async with serve() as directory, FaultProxy(directory) as proxy, use(proxy.address, timeout=0.3) as one:
        await one.ready(timeout=PATIENCE)
        proxy.freeze()
        with pytest.raises(DirectoryUnavailable, match=r"no answer in 0\.3 s") as caught:
            await one.list()
        assert str(caught.value.hint).startswith("it may be halted")
        async with use(proxy.address, timeout=0.3) as other:
            with pytest.raises(DirectoryUnavailable) as caught:
                await other.list()
            assert str(caught.value.hint).startswith("it may be halted")
        proxy.thaw()


async def test_before_the_directory() -> None:
    """A client may be there first: what it asks for waits for the directory."""
    address = nowhere()
    async with use(address) as one:
        told: list[Entry | None] = []
        one.watch("exchange", "E", told.append)
        registering = asyncio.ensure_future(one.register("exchange", "E", HERE))
        looking = asyncio.ensure_future(one.lookup("exchange", "E"))
        await until(lambda: one.last_error is not None and one.state == "connecting", "dialling")
        async with serve(address.port):
            await within(registering)
            found = await within(looking)
            assert found is not None
            assert found.address == HERE
            await until(lambda: told == [found], "the news")


async def test_waiting_for_the_directory() -> None:
    """Until it is met nothing is known of where it is; then it is."""
    address = nowhere()
    async with use(address) as one:
        waiting = asyncio.ensure_future(one.ready())
        with pytest.raises(DirectoryUnavailable):
            await one.ready(timeout=0.01)
        async with serve(address.port):
            await within(waiting)
            assert (one.state, one.near, one.local_host) == ("up", True, "127.0.0.1")
            await one.ready(timeout=0)


async def test_nobody_there() -> None:
    """Calls wait no longer than their timeouts, and say what is the matter."""
    address = nowhere()
    async with use(address, timeout=0.01) as one:
        for call in (one.lookup("queue", "Q"), one.register("queue", "Q", HERE), one.list(), one.list(timeout=0)):
            with pytest.raises(DirectoryUnavailable, match=f"{address}"):
                await call
        await until(lambda: one.last_error is not None, "the reason")
        with pytest.raises(DirectoryUnavailable, match="Connection refused"):
            await one.list()
        await one.unregister("queue", "Q")
        assert one.near is None
        assert one.local_host is None


async def test_a_directory_that_is_started_again() -> None:
    """All that was registered and watched is there again, by itself, and the hooks say so; nobody is told that names went."""
    port = free_port()
    first = serve(port)
    await first.start()
    async with use(first) as one, use(first) as two:
        hooks = Told(one)
        told: list[Entry | None] = []
        for number in range(600):  # several batches
            await one.register("queue", f"Q{number}", HERE)
            two.watch("queue", f"Q{number}", told.append)
        await until(lambda: len(told) == 600, "the news")
        await first.stop()
        await until(lambda: one.state == two.state == "lost", "the loss")
        assert isinstance(one.last_error, RedpollError)
        looking = asyncio.ensure_future(two.lookup("queue", "Q599"))
        await one.unregister("queue", "Q0")
        async with serve(port, lease=SHORT) as second:
            found = await within(looking)
            assert found is not None
            await until(lambda: len(names(second)) == 599, "the names")
            await until(lambda: hooks.calls == ["lost", "back"], "the hooks")
            await until(lambda: told[600:] == [None], "the one that was given up")
            await one.unregister("queue", "Q1")
            await until(lambda: told[600:] == [None, None], "news over the new link")


async def test_hooks_that_raise_a_cancellation(caplog: pytest.LogCaptureFixture) -> None:
    """Hooks and watches that raise a cancellation are logged as any that raises, and the client goes on."""
    port = free_port()
    called: list[object] = []

    def cancelling(*arguments: object) -> None:
        called.append(arguments)
        raise asyncio.CancelledError

    directory = serve(port)
    await directory.start()
    async with use(directory) as one:
        one.lost = one.back = cancelling
        await one.register("exchange", "E", HERE)
        one.watch("exchange", "E", cancelling)
        for hooks in (2, 4):
            await directory.stop()
            await until(lambda: one.state == "lost", "the loss")
            directory = serve(port)
            await directory.start()
            await until(lambda: names(directory) == ["E"], "the name")  # noqa: B023  # at once
            await until(lambda: sum("the hook" in each for each in caplog.messages) == hooks, "the hooks")  # noqa: B023
        await until(lambda: "what watches the exchange 'E' raised" in caplog.messages, "the watch")
    await directory.stop()


async def test_hooks_that_fail_often_are_logged_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    """A thousand failures of a hook of a client are two lines: the first, and how many there were since."""
    async with serve() as directory:
        async with use(directory) as one:
            one.taken = lambda *_: 1 / 0
            for _ in range(1_000):
                one._tell("taken", "queue", "Q", ValueError())
    logged = [each for each in caplog.messages if "the hook" in each]
    assert logged[0] == "the hook taken of a client of a directory raised"
    assert logged[1:] == ["the hook taken of a client of a directory raised 999 times, the last time"]


async def test_news_of_a_directory_that_was_started_again() -> None:
    """What a new directory says counts, though it has not looked as often as the former one."""
    port = free_port()
    async with use(Address("tcp", "127.0.0.1", port)) as one:
        told: list[Entry | None] = []
        one.watch("queue", "Q", told.append)
        async with serve(port):
            await one.register("queue", "Q", HERE)
            for _ in range(50):
                await one.lookup("queue", "Q")
        async with serve(port):
            await one.register("queue", "Q", THERE)
            await until(lambda: told[-1] is not None and told[-1].address == THERE, "the news")


@pytest.mark.parametrize("way", ["cut", "freeze"])
async def test_a_lost_link(way: str) -> None:
    """A link that is cut, at any moment, changes nothing but who is suspect for a while."""
    async with serve() as directory, FaultProxy(directory) as proxy, use(proxy) as one, use(directory) as two:
        told: list[Entry | None] = []
        await one.register("exchange", "E", HERE)
        two.watch("exchange", "E", told.append)
        await until(lambda: told, "the first news")
        for _ in range(3):
            count = len(told)
            if way == "freeze":
                proxy.freeze()
                registering = asyncio.ensure_future(one.register("exchange", "F", HERE))
                await asyncio.sleep(0)
                proxy.thaw()
                proxy.cut()
                await within(registering)
            else:
                proxy.cut()
            await until(lambda n=count: len(told) >= n + 2, "suspect, and there again")  # type: ignore[misc]
            assert [entry and entry.suspect for entry in told[-2:]] == [True, False]


async def test_a_name_that_another_took_meanwhile() -> None:
    """Who comes back to find its name taken is told, once, and again after it had it again."""
    port = free_port()
    async with serve(port) as directory, FaultProxy(directory) as proxy, use(proxy) as one:
        hooks = Told(one)
        await one.register("exchange", "E", HERE)
        proxy.refuse()
        proxy.cut()
        await directory.stop()
        async with serve(port) as second, use(second) as two:
            await two.register("exchange", "E", THERE)
            proxy.admit()
            await until(lambda: hooks.calls == ["lost", "taken exchange E", "back"], "the hooks")
            assert [entry.address for entry in second.entries] == [THERE]


async def test_what_a_directory_forgot_is_registered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is still linked, and whose lease is over, has its names again with its next renewal."""
    monkeypatch.setattr("redpoll.wiring.directory.session._RENEW_EVERY", 0.05)
    async with serve() as directory, use(directory) as one:
        await one.register("exchange", "E", HERE)
        directory._table.expire(1e12)
        assert names(directory) == []
        await until(lambda: names(directory) == ["E"], "the name")


async def test_a_lease_is_renewed() -> None:
    """An owner that does nothing keeps its names for many leases."""
    async with serve(lease=0.3) as directory, use(directory) as one:
        await one.register("exchange", "E", HERE)
        end = asyncio.get_running_loop().time() + 1.2
        while asyncio.get_running_loop().time() < end:
            assert names(directory) == ["E"]
            await asyncio.sleep(0.02)


async def test_a_cancelled_registration() -> None:
    """A name whose registration was cancelled is not registered when the directory comes."""
    address = nowhere()
    async with use(address) as one:
        registering = asyncio.ensure_future(one.register("exchange", "E", HERE))
        await asyncio.sleep(0)
        registering.cancel()
        await asyncio.gather(registering, return_exceptions=True)
        async with serve(address.port) as directory:
            await one.register("exchange", "F", HERE)
            assert names(directory) == ["F"]


async def test_unknown_names() -> None:
    """That nobody has a name is known at once after the first lease, and until then when the time is over."""
    async with serve(lease=SHORT) as directory, use(directory) as one:
        await one.ready()
        assert await one.lookup("queue", "Q", timeout=0.01) is None
        assert await one.lookup("queue", "Q") is None
        assert directory._table.settles_at is None
        told: list[Entry | None] = []
        one.watch("queue", "Q", told.append)
        await until(lambda: told == [None], "the news that there is nobody")
        assert one._desired.watched == [("queue", "Q")]


async def test_a_name_that_comes_in_the_first_lease() -> None:
    """Who looks a name up while owners come back gets it when its own is there."""
    async with serve() as directory, use(directory) as one, use(directory) as two:
        looking = asyncio.ensure_future(two.lookup("exchange", "E"))
        await until(lambda: directory._table._watchers, "the lookup")
        await one.register("exchange", "E", HERE)
        found = await within(looking)
        assert found is not None
        await until(lambda: not directory._table._watchers, "the end of its watch")


async def test_watches() -> None:
    """Several may watch a name; one that is cancelled hears nothing, and the directory of none any more."""
    async with serve() as directory, use(directory) as one, use(directory) as two:
        first: list[Entry | None] = []
        second: list[Entry | None] = []
        watch = two.watch("exchange", "E", first.append)
        await one.register("exchange", "E", HERE)
        await until(lambda: first, "the news")
        another = two.watch("exchange", "E", second.append)
        await until(lambda: second == first, "what is known already")
        watch.cancel()
        another.cancel()
        await until(lambda: not directory._table._watchers, "the end of the watch")
        await one.unregister("exchange", "E")
        assert len(first) == len(second) == 1


async def test_a_token() -> None:
    """Who has another token is told at once; when the directory is started with its own it is let in."""
    port = free_port()
    async with serve(port, token="sesame"), use(Address("tcp", "127.0.0.1", port), token="simsim", timeout=None) as one:
        for call in (one.lookup("queue", "Q"), one.list(), one.register("queue", "Q", HERE)):
            with pytest.raises(NotAuthorized, match="token"):
                await within(call)
        assert one.state == "refused"
    async with use(Address("tcp", "127.0.0.1", port), token="simsim") as one:
        watch = one.watch("queue", "Q", lambda entry: None)
        async with serve(port, token="sesame"):
            await until(lambda: one.state == "refused", "the refusal")
        async with serve(port, token="simsim") as directory:
            await until(lambda: one.state == "up", "the welcome")
            await one.register("queue", "Q", HERE)
            await until(lambda: watch.known, "the news")
            assert names(directory) == ["Q"]


async def test_given_up_where_it_is_not_let_in() -> None:
    """A name is given up at once where the directory has another token by now; let in again, it does not hear of it."""
    port = free_port()
    async with use(Address("tcp", "127.0.0.1", port), token="simsim") as one:
        async with serve(port, token="simsim"):
            await one.register("queue", "Q", HERE)
            await one.register("queue", "R", HERE)
        async with serve(port, token="sesame"):
            await until(lambda: one.state == "refused", "the refusal")
            await one.unregister("queue", "Q")
        async with serve(port, token="simsim") as directory:
            await until(lambda: one.state == "up", "the welcome")
            assert names(directory) == ["R"]


async def test_encryption(redpoll_pki: Certificates) -> None:
    """Over TLS all is as it is without; ends that do not agree are told so at once."""
    tls = TLS(certificate=redpoll_pki.issue())
    async with serve(tls=tls, encryption=True) as directory:
        async with use(directory, tls=tls, encryption=True) as one:
            await one.register("queue", "Q", HERE)
            assert names(directory) == ["Q"]
        async with use(directory, timeout=None) as one:
            with pytest.raises(TLSError):
                await within(one.list())


async def test_loopback_addresses_at_a_directory_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loopback address is refused with what to do, where the directory is not on this machine."""
    # As if its link came from elsewhere.
    monkeypatch.setattr("redpoll.wiring.directory.server.stays_here", lambda address: address == HERE)
    async with serve() as directory, use(directory) as one:
        with pytest.raises(ConfigError, match="is not on loopback") as caught:
            await one.register("queue", "Q", HERE)
        assert (caught.value.field, "advertise=" in (caught.value.hint or "")) == ("advertise", True)
        assert one.near is False


@pytest.mark.parametrize("address", ["0.0.0.0:5", "[::]:5", "10.0.0.1:0"])
async def test_addresses_that_nobody_can_dial(address: str) -> None:
    """They are refused before the directory is asked."""
    async with use(nowhere()) as one:
        with pytest.raises(ConfigError, match="advertise"):
            await one.register("queue", "Q", address)


async def test_bounds() -> None:
    """A directory that takes no more names says so; one that takes no more watches goes on, and takes them when it can."""
    async with serve(bounds=Bounds(entries=1, watches=1)) as directory, use(directory) as one:
        await one.register("queue", "Q", HERE)
        with pytest.raises(WiringError, match="its limit is 1"):
            await one.register("queue", "R", HERE)
        watch = one.watch("queue", "Q", lambda entry: None)
        other = one.watch("queue", "R", lambda entry: None)
        await until(lambda: watch.known, "the news")
        assert not other.known


async def test_a_watch_for_which_there_was_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for again with each renewal."""
    monkeypatch.setattr("redpoll.wiring.directory.session._RENEW_EVERY", 0.05)
    async with serve(bounds=Bounds(watches=1), entries=[Entry("queue", "R", HERE)]) as directory, use(directory) as one:
        first = one.watch("queue", "Q", lambda entry: None)
        second = one.watch("queue", "R", lambda entry: None)
        await one.list()
        first.cancel()
        await until(lambda: second.known, "the news")


async def test_hooks_that_raise(caplog: pytest.LogCaptureFixture) -> None:
    """They are logged, and all goes on."""
    port = free_port()

    def fail(*_: object) -> None:
        raise KeyError("hook")

    async with use(Address("tcp", "127.0.0.1", port)) as one:
        one.lost = one.back = fail
        with caplog.at_level(logging.ERROR, "redpoll.wiring"):
            for _ in range(2):
                async with serve(port):
                    await one.register("queue", "Q", HERE)
        await until(lambda: "hook lost" in caplog.text and "hook back" in caplog.text, "the log")


async def test_closing() -> None:
    """Names go at once; calls that wait fail; it can be closed twice, and is not started again."""
    async with serve() as directory:
        one = use(directory)
        with pytest.raises(Closed):
            await one.list()
        async with one:
            await one.register("queue", "Q", HERE)
        assert names(directory) == []
        assert directory.clients == 0
        await one.close()
        with pytest.raises(UsageError):
            await one.start()
        with pytest.raises(Closed):
            one.watch("queue", "Q", lambda entry: None)
    two = use(nowhere())
    await two.start()
    looking = asyncio.ensure_future(two.lookup("queue", "Q"))
    await asyncio.sleep(0)
    await two.close()
    with pytest.raises(Closed):
        await within(looking)
    assert two.state == "closed"


async def test_closing_while_it_is_met() -> None:
    """What was registered already is taken back, too, where the rest of it was not."""
    heard: list[bytes] = []
    register = asyncio.Event()

    async def handler(message: Received[bytes]) -> bytes:
        heard.append(message.header)
        if message.header == protocol.REGISTER.header:
            register.set()
            await asyncio.Event().wait()
        welcome = protocol.Welcome(protocol.VERSION, LONG, 0.0, True, "127.0.0.1")
        return protocol.HELLO.reply(welcome) if message.header == protocol.HELLO.header else protocol.say(None)

    async with make(handler, slots=4) as node:
        one = use(node.address)
        await one.start()
        one._desired.register(Entry("queue", "Q", HERE, None, OWNER))
        await within(register.wait())
        await within(one.close())
        await until(lambda: heard[-1] == protocol.BYE.header, "the goodbye")
        await node.stop(0)


async def test_one_that_was_never_started_is_closed() -> None:
    """There is nothing to do then."""
    one = use(nowhere())
    await one.close()
    assert one.state == "closed"


@pytest.mark.parametrize(
    "options",
    [{"token": ""}, {"owner_identity": b"short"}, {"timeout": -1}, {"timeout": "x"}, {"encryption": "maybe"}],
)
async def test_options(options: dict[str, Any]) -> None:
    """An option with a value that it cannot have is refused."""
    with pytest.raises(UsageError):
        use(nowhere(), **options)


async def test_arguments() -> None:
    """An argument that cannot be meant is refused at once, and nothing is wanted because of it."""
    async with use(nowhere()) as one:
        for call in (
            one.register("topic", "Q", HERE),  # type: ignore[arg-type]
            one.register("queue", "", HERE),
            one.register("queue", "Q", "nowhere"),
            one.register("queue", "Q", HERE, style=5),
            one.register("queue", "Q", HERE, identity=b"short"),
            one.register("queue", "Q", HERE, timeout=-1),
            one.unregister("topic", "Q"),  # type: ignore[arg-type]
            one.lookup("queue", "x" * 256),
            one.list(timeout=float("nan")),
        ):
            with pytest.raises(UsageError):
                await call
        with pytest.raises(UsageError):
            one.watch("queue", "a\nb", lambda entry: None)
        assert (one._desired.registrations, one._desired.watched) == ({}, [])


# What is no directory


def _fails(message: Received[Any]) -> None:
    raise ValueError("no word for me")


@pytest.mark.parametrize(
    ("handler", "options", "why"),
    [
        (lambda message: b"pong", {}, "msgpack cannot decode: "),
        (lambda message: None, {}, "request was done, but the handler there returned None"),
        (_fails, {}, "message was refused: the handler failed: ValueError: no word for me"),
        (lambda message: message.refuse("not me"), {}, "message was refused: not me"),
        (
            lambda message: [],
            {"serializer": "json"},
            "message was refused: the peer cannot decode the data: encoded with raw",
        ),
        (None, {"unclaimed_timeout": 0.05}, "message was refused: unclaimed"),
    ],
)
async def test_another_node_at_the_address(handler: Any, options: dict[str, Any], why: str) -> None:
    """A node that answers and is no directory fails calls at once, with what it said and what to do."""
    async with make(handler, **options) as node, use(node.address) as client:
        with pytest.raises(ConfigError) as caught:
            await within(client.register("queue", "Q", THERE, timeout=None))
        text = str(caught.value)
        assert text.startswith(f"directory='{node.address}': what answers there is no directory: {why}")
        assert text.endswith(" (is the address right? Start one with: redpoll directory)")


async def test_another_protocol_at_the_address() -> None:
    """What is no node at all is told in the same words."""
    async with raw_listener() as listener, use(Address("tcp", "127.0.0.1", listener.port)) as client:
        asking = asyncio.ensure_future(client.lookup("queue", "Q", timeout=None))
        link = await listener.accept()
        link.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        with pytest.raises(ConfigError, match="is no directory: protocol error: the peer speaks HTTP"):
            await within(asking)
        link.close()


async def test_a_directory_in_place_of_another_node() -> None:
    """A client that met another node first meets the directory that is there afterwards."""
    port = free_port()
    async with make(lambda message: b"pong", port=port) as node:
        client = use(node.address)
        await client.start()
        with pytest.raises(ConfigError):
            await within(client.ready(timeout=None))
    async with serve(port) as directory:
        await until(lambda: client.state == "up", "the directory")
        await client.register("queue", "Q", THERE)
        assert names(directory) == ["Q"]
        await client.close()
