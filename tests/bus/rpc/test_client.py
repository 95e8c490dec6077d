"""Clients: methods like an object's, settings, versions, types."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from redpoll.bus.rpc import Target
from redpoll.errors import CallTimeout, ConfigError, NoRoute, RemoteError, UsageError
from tests.bus.patterns import Server, bus_in_virtual_time, until

if TYPE_CHECKING:
    from decimal import Decimal as Elsewhere

pytestmark = pytest.mark.asyncio


class Calculator:
    """Served, and the type of its clients."""

    async def add(self, a: int, b: int = 1, **more: int) -> int:
        """Add."""
        return a + b + sum(more.values())

    async def primes(self, below: int) -> AsyncIterator[int]:
        """Stream."""
        for number in range(2, below):
            if all(number % each for each in range(2, number)):
                yield number

    def plain(self) -> None:
        """Nothing that a client has."""


class Interface(Protocol):
    """The same methods for a program without the code: what is annotated as an iterator is a stream."""

    async def add(self, a: int, b: int = 1) -> int: ...

    def primes(self, below: int, unused: Elsewhere | None = None) -> AsyncIterator[int]: ...

    async def odd(self, value: Elsewhere) -> int: ...

    async def gone(self, value: "asyncio.Gone") -> int: ...  # type: ignore[name-defined]  # noqa: UP037


async def test_a_client_calls_methods_by_keywords() -> None:
    """A client has the methods of its target; those that are named like its own are called by name."""
    server = Server("s")
    async with bus_in_virtual_time() as (bus, _), bus.rpc.serve("a", server):
        client = bus.rpc.client("a", timeout=3)
        assert await client.append(text="1") == "s"
        assert await client.call("append", text="2") == "s"
        await client.cast("append", text="3")
        await client.fanout("append", text="4")
        await until(lambda: sorted(server.seen) == ["1", "2", "3", "4"])
        assert client.append is client.append
        with pytest.raises(TypeError, match=r"append\(\) takes keyword arguments"):
            await client.append("5")
        assert repr(client) == "<Client of 'a'>"
        with pytest.raises(AttributeError):
            _ = client._private
        with pytest.raises(NoRoute):
            await client.prepare(server="nobody").append(text="5")


async def test_settings_are_prepared() -> None:
    """Oslo 13: a prepared client has what was given, None too, and keeps the rest; it can be prepared again."""
    async with bus_in_virtual_time() as (bus, clock):
        client = bus.rpc.client(Target("a", version="1.1"), timeout=5, retry=3, server="s")
        second = client.prepare(timeout=None, version=None).prepare(server=None, retry=0)
        assert (second.settings.timeout, second.settings.retry) == (None, 0)
        assert (second.target, client.target) == (Target("a"), Target("a", version="1.1", server="s"))
        assert client.prepare(timeout=0).settings.timeout == 0
        assert bus.rpc.client("a").settings.timeout == 60.0
        call = asyncio.ensure_future(client.prepare(mandatory=False, server=None).x())
        await clock.advance(5)
        with pytest.raises(CallTimeout):
            await call
        with pytest.raises(UsageError, match=r"no setting 'hosts' \(it has .*timeout, topic"):
            client.prepare(hosts=1)  # type: ignore[call-arg]
        wrong: dict[str, Any]
        for wrong in ({"timeout": -1}, {"version": "5"}, {"version_cap": "x"}, {"topic": None}):
            with pytest.raises(ConfigError):
                client.prepare(**wrong)


@pytest.mark.parametrize(
    ("cap", "version", "allowed"),
    [
        (None, None, True),
        (None, "9.9", True),
        ("1.5", None, False),
        ("1.5", "1.4", True),
        ("1.5", "1.5", True),
        ("1.5", "1.6", False),
        ("1.5", "2.0", False),
        ("1.5", "0.1", False),
    ],
)
async def test_a_cap_allows_versions(cap: str | None, version: str | None, allowed: bool) -> None:
    """Oslo 13: the matrix of caps and versions; what is above a cap is refused before it is sent."""
    async with bus_in_virtual_time() as (bus, _):
        client = bus.rpc.client(Target("a"), version_cap=cap, version=version)
        assert client.can_send_version() is allowed
        assert bus.rpc.client("a", version_cap=cap).can_send_version(version) is allowed
        if allowed:
            client.call("x").close()
        else:
            for verb in (client.call, client.cast, client.fanout, client.stream):
                with pytest.raises(UsageError, match="above the cap"):
                    verb("x")


async def test_all_servers_do_not_answer() -> None:
    """Oslo 13: a call of all servers is refused, whether the target or the client says so; a cast goes to all."""
    servers = [Server(), Server()]
    async with bus_in_virtual_time() as (bus, _):
        for each in servers:
            await bus.rpc.serve("a", each).start()
        for client in (bus.rpc.client(Target("a", fanout=True)), bus.rpc.client("a").prepare(fanout=True)):
            with pytest.raises(UsageError, match="all servers"):
                await client.call("append")
            with pytest.raises(UsageError, match="all servers"):
                client.stream("append")
            await client.cast("append", text="x")
        await until(lambda: [len(each.seen) for each in servers] == [2, 2])


async def test_a_class_is_the_type_of_its_client() -> None:
    """A class gives a client with the same methods: positions, defaults, streams; wrong arguments fail before sending."""
    async with bus_in_virtual_time() as (bus, _), bus.rpc.serve("a", Calculator()):
        client = bus.rpc.client("a", Calculator, timeout=3)
        assert await client.add(1, 2) == 3
        assert await client.add(1, c=4) == 6
        assert await client.add(a=1) == 2
        assert [number async for number in client.primes(12)] == [2, 3, 5, 7, 11]
        assert client.add.__doc__ == "Add."
        with pytest.raises(UsageError, match=r"Calculator\.plain is a plain function.*async def"):
            client.plain()
        with pytest.raises(TypeError, match="missing a required argument"):
            await client.add()  # type: ignore[call-arg]
        with pytest.raises(UsageError, match="no asynchronous methods"):
            bus.rpc.client("a", int)


async def test_an_interface_without_code_is_the_type_of_a_client() -> None:
    """A protocol is enough: its streams are those that say so, and a name for type checkers alone does no harm."""
    async with bus_in_virtual_time() as (bus, _), bus.rpc.serve("a", Calculator()):
        client = bus.rpc.client("a", Interface, timeout=3)
        assert await client.add(1, b=2) == 3
        assert [number async for number in client.primes(12)] == [2, 3, 5, 7, 11]
        with pytest.raises(RemoteError, match="NoSuchMethod: 'odd'"):
            await client.odd(1)  # type: ignore[arg-type]
