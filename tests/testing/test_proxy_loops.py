"""The fault proxy on loops that cannot carry it, or not any more."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from redpoll import Address, UsageError
from redpoll.testing import FaultProxy
from tests.node.support import until


class Limited(asyncio.SelectorEventLoop):
    """A loop without the means, as that of Windows by default is."""

    def add_reader(self, *_: Any) -> None:  # type: ignore[override]  # whatever it is called with
        raise NotImplementedError


def test_loop_without_add_reader() -> None:
    """On a loop that cannot watch sockets, starting says so and leaves nothing open."""
    with asyncio.Runner(loop_factory=Limited) as runner, pytest.raises(UsageError, match="SelectorEventLoop"):
        runner.run(FaultProxy("127.0.0.1:1").start())


def test_closed_after_its_loop() -> None:
    """A proxy whose loop was closed can still be closed, with its connections, and leaves nothing open."""
    proxies = []

    async def forgets() -> None:
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        async with server:
            proxy = FaultProxy(Address.of_socket(server.sockets[0].getsockname()))
            proxies.append(proxy)
            await proxy.start()
            reader, writer = await asyncio.open_connection(proxy.address.host, proxy.address.port)
            assert await reader.read() == b""
            writer.close()
            await writer.wait_closed()
            proxy.freeze()
            _, writer = await asyncio.open_connection(proxy.address.host, proxy.address.port)
            await until(lambda: proxy.stats().connections == 2, "the second connection")
            writer.close()
            await writer.wait_closed()

    asyncio.run(forgets())
    assert proxies[0].stats().open > 0
    proxies[0].close()
    assert not proxies[0].running
    assert proxies[0].stats().open == 0
    gc.collect()
