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
from redpoll.wiring.registry import Registry
from tests.wiring.support import directory

pytestmark = pytest.mark.asyncio

HERE = Address.parse("127.0.0.1:4000")


def make(**more: Any) -> Registry:
    """A registry with stand-ins for all that it uses."""
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
    registry = Registry(**parts)
    registry.parts = SimpleNamespace(**parts)  # type: ignore[attr-defined]
    return registry


def parts(registry: Registry) -> Any:
    """What it uses."""
    return registry.parts  # type: ignore[attr-defined]


async def test_claims_by_scope() -> None:
    """A LOCAL name is known to nobody, a PROCESS one in the process, a GLOBAL one to the directory as well."""
    registry = make()
    await registry.claim("queue", "Q", LOCAL, None)
    assert not parts(registry).neighbour.claim.called
    await registry.claim("queue", "Q", PROCESS, None)
    assert not parts(registry).directory.register.called
    await registry.claim("exchange", "E", GLOBAL, Style.BALANCE)
    parts(registry).directory.register.assert_awaited_once_with(
        "exchange", "E", HERE, Style.BALANCE, b"me", timeout=1.0, until_free=True
    )
    await registry.give_up("exchange", "E", GLOBAL)
    parts(registry).directory.unregister.assert_awaited_once_with("exchange", "E")
    parts(registry).neighbour.release.assert_called_once_with("exchange", "E")


async def test_directory_says_no() -> None:
    """What the directory does not register is not known in the process either; one that is gone is given up all the same."""
    registry = make()
    parts(registry).directory.register.side_effect = NameTaken("queue", "Q", "somebody")
    with pytest.raises(NameTaken):
        await registry.claim("queue", "Q", GLOBAL, None)
    parts(registry).neighbour.release.assert_called_once_with("queue", "Q")
    parts(registry).directory.unregister.side_effect = DirectoryUnavailable(None, "gone")
    await registry.give_up("queue", "Q", GLOBAL)


async def test_scopes() -> None:
    """GLOBAL needs a directory; a scope is a scope."""
    registry = make(directory=None)
    with pytest.raises(ScopeError):
        registry.check_scope(GLOBAL)
    with pytest.raises(UsageError) as caught:
        registry.check_scope("GLOBAL")
    assert (
        str(caught.value)
        == "scope is a Scope, not 'GLOBAL' (of redpoll.wiring: Scope.LOCAL, Scope.PROCESS, Scope.GLOBAL)"
    )
    registry.check_scope(PROCESS)


async def test_address() -> None:
    """Others dial what is advertised, with the node's port if none is; else the directory's link may say where."""
    assert make().address == HERE
    assert str(make(advertise=("example.org", 0)).address) == "example.org:4000"
    assert str(make(advertise=("example.org", 7)).address) == "example.org:7"
    everywhere = make(hosts=("0.0.0.0",))

    async def met(*_: object, **__: object) -> None:
        parts(everywhere).directory.local_host = "192.0.2.9"

    parts(everywhere).directory.ready.side_effect = met
    await everywhere.claim("queue", "Q", GLOBAL, None)
    assert str(parts(everywhere).directory.register.await_args.args[2]) == "192.0.2.9:4000"


async def test_find() -> None:
    """A name is looked for here, then in the process, then in the directory, where one's own entry is nobody."""
    registry = make()
    parts(registry).board.queues["Q"] = object()
    assert await registry.find("queue", "Q") is parts(registry).board.local
    parts(registry).neighbour.find.return_value = trunk = Mock()
    assert await registry.find("exchange", "Q") is trunk
    parts(registry).neighbour.find.return_value = None
    with pytest.raises(UnknownName):
        await registry.find("exchange", "Q")
    entry = parts(registry).directory.lookup.return_value = Mock(identity=b"other", address=HERE)
    assert await registry.find("exchange", "Q") is parts(registry).net.connect.return_value
    entry.identity = b"me"
    with pytest.raises(UnknownName):
        await registry.find("exchange", "Q")


async def test_find_together() -> None:
    """All that look for a name in one turn of the loop ask the directory once; who comes later asks anew."""
    registry = make()
    directory = parts(registry).directory
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def ask(*_: object, **__: object) -> Any:
        return await asyncio.shield(answer)

    directory.lookup.side_effect = ask
    cancelled, *others = (asyncio.ensure_future(registry.find("queue", "Q")) for _ in range(3))
    await asyncio.sleep(0)
    cancelled.cancel()
    for _ in range(3):
        await asyncio.sleep(0)
    assert directory.lookup.call_count == 1
    late = asyncio.ensure_future(registry.find("queue", "Q"))
    for _ in range(3):
        await asyncio.sleep(0)
    assert directory.lookup.call_count == 2
    answer.set_result(Mock(identity=b"other", address=HERE))
    for each in (*others, late):
        assert await each is parts(registry).net.connect.return_value


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
async def test_find_given_up(turns: int) -> None:
    """A question that nobody waits for any more, however far it is, is nobody's later."""
    registry = make()
    directory = parts(registry).directory

    async def ask(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    directory.lookup.side_effect = ask
    asking = asyncio.ensure_future(registry.find("queue", "Q"))
    for _ in range(turns):
        await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    directory.lookup.side_effect = None
    directory.lookup.return_value = Mock(identity=b"other", address=HERE)
    assert await registry.find("queue", "Q") is parts(registry).net.connect.return_value
    assert not registry._asking


async def test_trouble() -> None:
    """Why names are not found: the directory is away, has not answered, or was started just now."""
    registry = make()
    assert registry.trouble("E", "Q") is None
    assert make(directory=None).trouble("E", "Q") is None
    directory = parts(registry).directory
    found: list[RedpollError | None] = []

    async def slow(*_: object, **__: object) -> None:
        for settled in (True, False):
            directory.settled = settled
            found.append(registry.trouble("E", "Q"))

    directory.address = HERE
    directory.state = "up"
    directory.lookup.side_effect = slow
    with pytest.raises(UnknownName):
        await registry.find("exchange", "E")
    silent, young = found
    assert isinstance(silent, DirectoryUnavailable)
    assert isinstance(young, UnknownName)
    assert "started just now" in str(young)
    assert registry.trouble("E", "Q") is None
    directory.state = "lost"
    assert isinstance(registry.trouble("E", "Q"), DirectoryUnavailable)


async def test_listening_everywhere() -> None:
    """A wiring that listens everywhere registers the address that its link to the directory has."""
    async with directory() as names, Wiring(names.address, host="0.0.0.0", encryption=False) as wiring:
        await wiring.create_queue("Q", scope=GLOBAL)
        assert wiring._directory is not None
        (entry,) = await wiring._directory.list()
        assert entry.address == Address("tcp", "127.0.0.1", wiring.address.port)
