"""Where names are known, and where they are looked for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from redpoll import GLOBAL, LOCAL, PROCESS, Address, Wiring
from redpoll.errors import DirectoryUnavailable, NameTaken, RedpollError, ScopeError, UnknownName, UsageError
from redpoll.wiring.names import Style
from redpoll.wiring.resolver import Resolver
from tests.wiring.support import directory

pytestmark = pytest.mark.asyncio

HERE = Address.parse("127.0.0.1:4000")


def make(**more: Any) -> Resolver:
    """A resolver with stand-ins for all that it uses."""
    parts = {
        "board": Mock(exchanges={}, queues={}),
        "net": Mock(node=Mock(address=HERE, identity=b"me"), connect=AsyncMock()),
        "neighbour": Mock(find=Mock(return_value=None)),
        "directory": Mock(
            register=AsyncMock(),
            unregister=AsyncMock(),
            lookup=AsyncMock(return_value=None),
            ready=AsyncMock(return_value=None),
            local_host=None,
            state="up",
        ),
        "advertise": None,
        "hosts": ("127.0.0.1",),
        "timeout": 1.0,
    } | more
    resolver = Resolver(**parts)
    resolver.parts = SimpleNamespace(**parts)  # type: ignore[attr-defined]
    return resolver


def parts(resolver: Resolver) -> Any:
    """What it uses."""
    return resolver.parts  # type: ignore[attr-defined]


async def test_claims_by_scope() -> None:
    """A LOCAL name is known to nobody, a PROCESS one in the process, a GLOBAL one to the directory as well."""
    resolver = make()
    await resolver.claim("queue", "Q", LOCAL, None)
    assert not parts(resolver).neighbour.claim.called
    await resolver.claim("queue", "Q", PROCESS, None)
    assert not parts(resolver).directory.register.called
    await resolver.claim("exchange", "E", GLOBAL, Style.BALANCE)
    parts(resolver).directory.register.assert_awaited_once_with(
        "exchange", "E", HERE, Style.BALANCE, b"me", timeout=1.0, until_free=True
    )
    await resolver.give_up("exchange", "E", GLOBAL)
    parts(resolver).directory.unregister.assert_awaited_once_with("exchange", "E")
    parts(resolver).neighbour.release.assert_called_once_with("exchange", "E")


async def test_directory_says_no() -> None:
    """What the directory does not register is not known in the process either; one that is gone is given up all the same."""
    resolver = make()
    parts(resolver).directory.register.side_effect = NameTaken("queue", "Q", "somebody")
    with pytest.raises(NameTaken):
        await resolver.claim("queue", "Q", GLOBAL, None)
    parts(resolver).neighbour.release.assert_called_once_with("queue", "Q")
    parts(resolver).directory.unregister.side_effect = DirectoryUnavailable(None, "gone")
    await resolver.give_up("queue", "Q", GLOBAL)


async def test_scopes() -> None:
    """GLOBAL needs a directory; a scope is a scope."""
    resolver = make(directory=None)
    with pytest.raises(ScopeError):
        resolver.check_scope(GLOBAL)
    with pytest.raises(UsageError) as caught:
        resolver.check_scope("GLOBAL")
    assert (
        str(caught.value)
        == "scope is a Scope, not 'GLOBAL' (of redpoll.wiring: Scope.LOCAL, Scope.PROCESS, Scope.GLOBAL)"
    )
    resolver.check_scope(PROCESS)


async def test_address() -> None:
    """Others dial what is advertised, with the node's port if none is; else the directory's link may say where."""
    assert make().address == HERE
    assert str(make(advertise=("example.org", 0)).address) == "example.org:4000"
    assert str(make(advertise=("example.org", 7)).address) == "example.org:7"
    is_global = make(hosts=("0.0.0.0",))

    async def met(*_: object, **__: object) -> None:
        parts(is_global).directory.local_host = "192.0.2.9"

    parts(is_global).directory.ready.side_effect = met
    await is_global.claim("queue", "Q", GLOBAL, None)
    assert str(parts(is_global).directory.register.await_args.args[2]) == "192.0.2.9:4000"


async def test_find() -> None:
    """A name is looked for here, then in the process, then in the directory, where one's own entry is nobody."""
    resolver = make()
    parts(resolver).board.queues["Q"] = object()
    assert await resolver.find("queue", "Q") is parts(resolver).board.local
    parts(resolver).neighbour.find.return_value = connection = Mock()
    assert await resolver.find("exchange", "Q") is connection
    parts(resolver).neighbour.find.return_value = None
    with pytest.raises(UnknownName):
        await resolver.find("exchange", "Q")
    entry = parts(resolver).directory.lookup.return_value = Mock(identity=b"other", address=HERE)
    assert await resolver.find("exchange", "Q") is parts(resolver).net.connect.return_value
    entry.identity = b"me"
    with pytest.raises(UnknownName):
        await resolver.find("exchange", "Q")


async def test_find_together() -> None:
    """All that look for a name in one turn of the loop ask the directory once; who comes later asks anew."""
    resolver = make()
    directory = parts(resolver).directory
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def ask(*_: object, **__: object) -> Any:
        return await asyncio.shield(answer)

    directory.lookup.side_effect = ask
    cancelled, *others = (asyncio.ensure_future(resolver.find("queue", "Q")) for _ in range(3))
    await asyncio.sleep(0)
    cancelled.cancel()
    for _ in range(3):
        await asyncio.sleep(0)
    assert directory.lookup.call_count == 1
    late = asyncio.ensure_future(resolver.find("queue", "Q"))
    for _ in range(3):
        await asyncio.sleep(0)
    assert directory.lookup.call_count == 2
    answer.set_result(Mock(identity=b"other", address=HERE))
    for each in (*others, late):
        assert await each is parts(resolver).net.connect.return_value


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
async def test_find_given_up(turns: int) -> None:
    """A question that nobody waits for any more, however far it is, is nobody's later."""
    resolver = make()
    directory = parts(resolver).directory

    async def ask(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    directory.lookup.side_effect = ask
    asking = asyncio.ensure_future(resolver.find("queue", "Q"))
    for _ in range(turns):
        await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    directory.lookup.side_effect = None
    directory.lookup.return_value = Mock(identity=b"other", address=HERE)
    assert await resolver.find("queue", "Q") is parts(resolver).net.connect.return_value
    assert not resolver._asking


async def test_trouble() -> None:
    """Why names are not found: the directory is away, has not answered, or was started just now."""
    resolver = make()
    assert resolver.last_error("E", "Q") is None
    assert make(directory=None).last_error("E", "Q") is None
    directory = parts(resolver).directory
    found: list[RedpollError | None] = []

    async def slow(*_: object, **__: object) -> None:
        for settled in (True, False):
            directory.settled = settled
            found.append(resolver.last_error("E", "Q"))

    directory.address = HERE
    directory.state = "up"
    directory.lookup.side_effect = slow
    with pytest.raises(UnknownName):
        await resolver.find("exchange", "E")
    silent, young = found
    assert isinstance(silent, DirectoryUnavailable)
    assert isinstance(young, UnknownName)
    assert "started just now" in str(young)
    assert resolver.last_error("E", "Q") is None
    directory.state = "lost"
    assert isinstance(resolver.last_error("E", "Q"), DirectoryUnavailable)


async def test_listening_everywhere() -> None:
    """A wiring that listens is_global registers the address that its link to the directory has."""
    async with directory() as names, Wiring(names.address, host="0.0.0.0", encryption=False) as wiring:
        await wiring.create_queue("Q", scope=GLOBAL)
        assert wiring._directory is not None
        (entry,) = await wiring._directory.list()
        assert entry.address == Address("tcp", "127.0.0.1", wiring.address.port)
