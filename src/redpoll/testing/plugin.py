"""The objects of the pytest fixtures: factories of nodes and proxies, which know what a test did not close.

pytest itself finds the fixtures in the module `_redpoll_pytest`: importing this one imports the whole of redpoll, which
a test run that uses none of them should not pay for.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import combinations
from typing import Any, Unpack

from redpoll.address import Address
from redpoll.config import Config, ConfigOptions
from redpoll.errors import UsageError
from redpoll.node import Node
from redpoll.testing.faults import Chaos, Faults, Step
from redpoll.testing.proxy import Addressed, FaultProxy

__all__ = ["FaultsFactory", "Kept", "NodeFactory", "NodesFactory"]

Handler = Callable[[Any], Any]

_RUNNING = frozenset(("starting", "running", "stopping"))


class Kept:
    """The nodes and proxies that one test made, and the seed of its faults.

    Args:
        seed: The seed that the test was told to use; None draws one.

    Attributes:
        seed: The seed from which each proxy has its own.
        seeded: Whether a proxy has one of these.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seed = int.from_bytes(os.urandom(4)) if seed is None else seed
        self.seeded = 0
        self._nodes: list[Node[Any]] = []
        self._proxies: list[FaultProxy] = []

    def add_node(self, node: Node[Any]) -> Node[Any]:
        """Register a node."""
        self._nodes.append(node)
        return node

    def add_proxy(self, proxy: FaultProxy) -> FaultProxy:
        """Register a proxy."""
        self._proxies.append(proxy)
        return proxy

    def next_seed(self) -> int:
        """The seed of the next proxy without one; the first has the test's own."""
        self.seeded += 1
        return self.seed + self.seeded - 1

    def end(self) -> str | None:
        """Close what is still open, as far as that can be done without its loop.

        Returns:
            The text of the failure; None if nothing was open.
        """
        nodes = [node for node in self._nodes if node._state in _RUNNING]
        proxies = [proxy for proxy in self._proxies if proxy.running]
        if not nodes and not proxies:
            return None
        lines = ["the test ended and did not close:"]
        lines += [f"    {each!r}" for each in (*nodes, *proxies)]
        lines.append("(open them with `async with`, or await node.stop() and call proxy.close() before the end)")
        for proxy in proxies:
            with contextlib.suppress(OSError, RuntimeError):
                proxy.close()
        for node in nodes:
            _put_down(node)
        return "\n".join(lines)

    @property
    def remark(self) -> str | None:
        """Text that tells how to repeat a failed test with the same faults; None if nothing was drawn."""
        return f"run it again with the same faults: --redpoll-seed={self.seed}" if self.seeded else None


class NodeFactory:
    """Makes nodes for a test: the fixture `redpoll_node`.

    Args:
        kept: What remembers them.
    """

    def __init__(self, kept: Kept) -> None:
        self._kept = kept

    def __call__(
        self, handler: Handler | None = None, config: Config | None = None, **options: Unpack[ConfigOptions]
    ) -> Node[Any]:
        """Make a node; use it as an async context manager, or call `start` and `stop`.

        Args:
            handler: As for `Node`.
            config: As for `Node`.
            **options: As for `Node`. The default of `port` is 0, any free port, so that tests do not meet.

        Raises:
            ConfigError: As for `Node`.
        """
        listens = options.get("listen", config.listen if config is not None else None)
        if listens is not False and (config is None or config.port is None):
            options.setdefault("port", 0)
        return self._kept.add_node(Node(handler, config, **options))


class NodesFactory:
    """Makes several nodes that have links to one another: the fixture `redpoll_nodes`.

    Args:
        kept: What remembers them.
    """

    def __init__(self, kept: Kept) -> None:
        self._make = NodeFactory(kept)

    def __call__(
        self,
        count: int,
        handler: Handler | Sequence[Handler | None] | None = None,
        config: Config | None = None,
        **options: Unpack[ConfigOptions],
    ) -> AbstractAsyncContextManager[tuple[Node[Any], ...]]:
        """Make nodes; entering starts them all and links each with each, leaving stops them.

        Args:
            count: How many, 1 or more.
            handler: One for all, or a list of one for each; None is none.
            config: As for `Node`, for all of them.
            **options: As for `Node`, for all of them.

        Returns:
            A context manager of the nodes, in a tuple.

        Raises:
            UsageError: The count is below 1, or is not that of the handlers.
            ConfigError: As for `Node`.
        """
        if type(count) is not int or count < 1:
            raise UsageError(f"{count!r} is no number of nodes")
        handlers = list(handler) if isinstance(handler, Sequence) else [handler] * count
        if len(handlers) != count:
            raise UsageError(f"there are {len(handlers)} handlers for {count} nodes")
        return self._linked([self._make(each, config, **options) for each in handlers])

    @contextlib.asynccontextmanager
    async def _linked(self, nodes: list[Node[Any]]) -> AsyncIterator[tuple[Node[Any], ...]]:
        async with contextlib.AsyncExitStack() as stack:
            for node in nodes:
                await stack.enter_async_context(node)
            for one, other in combinations(nodes, 2):
                await one.ready(other.address)
            yield tuple(nodes)


class FaultsFactory:
    """Makes fault proxies for a test: the fixture `redpoll_faults`.

    Args:
        kept: What remembers them.
    """

    def __init__(self, kept: Kept) -> None:
        self._kept = kept

    def __call__(
        self,
        target: Address | str | Addressed,
        *,
        seed: int | None = None,
        chaos: Chaos | None = None,
        faults: Faults | None = None,
        steps: Iterable[Step] = (),
        buffer: int = 65_536,
    ) -> FaultProxy:
        """Make a proxy in front of a node; use it as an async context manager.

        Args:
            target: A node that listens when the proxy starts, or an address.
            seed: As for `FaultProxy`; None is the seed of the test, which its report names when it fails and which the
                option ``--redpoll-seed`` sets. A second proxy without a seed has the next number, and so on.
            chaos: As for `FaultProxy`.
            faults: As for `FaultProxy`; None is none.
            steps: As for `FaultProxy`.
            buffer: As for `FaultProxy`.

        Raises:
            UsageError: As for `FaultProxy`; also `ConfigError`.
        """
        own = self._kept.next_seed() if seed is None else seed
        conditions = Faults() if faults is None else faults
        return self._kept.add_proxy(
            FaultProxy(target, seed=own, chaos=chaos, faults=conditions, steps=steps, buffer=buffer)
        )


def _put_down(node: Node[Any]) -> None:
    """Stop a node whose loop no longer runs, so that it affects no later test."""
    loop: asyncio.AbstractEventLoop | None = getattr(node, "_loop", None)
    if loop is not None and not loop.is_closed() and asyncio._get_running_loop() is None:
        # An error here is not reported: the test has failed already, for a better reason.
        with contextlib.suppress(Exception):
            loop.run_until_complete(node.stop(0))
    # Unclosed nodes were reported: no second warning when the node is dropped.
    node._state = "stopped"
