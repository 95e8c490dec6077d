"""Clients that do whatever they like, over links that break, at a directory that comes and goes: in the end all agree."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from redpoll import Address
from redpoll.errors import NameTaken
from redpoll.testing import FaultProxy
from redpoll.wiring.directory import Directory, DirectoryClient, Watch
from redpoll.wiring.directory.desired import Standing
from tests.conftest import LOOPS
from tests.node.support import until
from tests.ports import free_port

NAMES = ("A", "B", "C")
CLIENTS = (0, 1, 2)

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("register"), st.sampled_from(CLIENTS), st.sampled_from(NAMES)),
        st.tuples(st.just("unregister"), st.sampled_from(CLIENTS), st.sampled_from(NAMES)),
        st.tuples(st.just("watch"), st.sampled_from(CLIENTS), st.sampled_from(NAMES)),
        st.tuples(st.just("unwatch"), st.sampled_from(CLIENTS), st.sampled_from(NAMES)),
        st.tuples(st.just("cut"), st.sampled_from(CLIENTS), st.just("")),
        st.tuples(st.just("refuse"), st.sampled_from(CLIENTS), st.just("")),
        st.tuples(st.just("admit"), st.sampled_from(CLIENTS), st.just("")),
        st.tuples(st.just("restart"), st.just(0), st.just("")),
        st.tuples(st.just("turns"), st.integers(1, 40), st.just("")),
    ),
    max_size=30,
)

#: Seconds of a lease: what is not known in the first one is to be known soon.
LEASE = 0.4


class Play:
    """A directory, and three clients, each behind a proxy of its own."""

    def __init__(self) -> None:
        self.port = free_port()
        self.directory = self._new()
        self.proxies: list[FaultProxy] = []
        self.clients: list[DirectoryClient] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.watches: dict[tuple[int, str], Watch] = {}
        self.places = 0

    def _new(self) -> Directory:
        return Directory(port=self.port, lease=LEASE)

    async def run(self, steps: list[tuple[str, Any, str]]) -> None:
        """Do all of it, then let everything calm down, and see who knows what."""
        await self.directory.start()
        try:
            async with contextlib.AsyncExitStack() as stack:
                for _ in CLIENTS:
                    proxy = await stack.enter_async_context(FaultProxy(f"127.0.0.1:{self.port}", seed=0))
                    self.proxies.append(proxy)
                    client = DirectoryClient(proxy.address, timeout=None)
                    self.clients.append(await stack.enter_async_context(client))
                for step, number, name in steps:
                    await self._step(step, number, name)
                for proxy in self.proxies:
                    proxy.admit()
                async with asyncio.timeout(20):
                    await asyncio.gather(*self.tasks)
                await until(lambda: self._problem() == "", "all to agree")
        except AssertionError as error:
            raise AssertionError(self._problem()) from error
        finally:
            for task in self.tasks:
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)
            await self.directory.stop()

    async def _step(self, step: str, number: int, name: str) -> None:
        if step == "register":
            self.places += 1
            self.tasks.append(asyncio.create_task(self._register(self.clients[number], name, 1000 + self.places)))
        elif step == "unregister":
            self.tasks.append(asyncio.create_task(self.clients[number].unregister("queue", name)))
        elif step == "watch" and (number, name) not in self.watches:
            self.watches[number, name] = self.clients[number].watch("queue", name, lambda entry: None)
        elif step == "unwatch" and (number, name) in self.watches:
            self.watches.pop((number, name)).cancel()
        elif step == "cut":
            self.proxies[number].cut()
        elif step == "refuse":
            self.proxies[number].refuse()
            self.proxies[number].cut()
        elif step == "admit":
            self.proxies[number].admit()
        elif step == "restart":
            await self.directory.stop(0)
            self.directory = self._new()
            await self.directory.start()
        elif step == "turns":
            for _ in range(number):
                await asyncio.sleep(0)

    @staticmethod
    async def _register(client: DirectoryClient, name: str, port: int) -> None:
        with contextlib.suppress(NameTaken):
            await client.register("queue", name, Address("tcp", "127.0.0.1", port))

    def _problem(self) -> str:
        """What clients and directory do not agree about."""
        known = {entry.name: entry for entry in self.directory.entries}
        wanted: dict[str, set[Address]] = {}
        for client in self.clients:
            for (_, name), registration in client._desired.registrations.items():
                wanted.setdefault(name, set()).add(registration.entry.address)
                held = name in known and known[name].address == registration.entry.address
                if held is not (registration.standing is Standing.HELD):
                    return f"{name} is {registration.standing} for a client, and the directory says {known.get(name)}"
        if known.keys() != wanted.keys():
            return f"the directory knows {sorted(known)}, and clients want {sorted(wanted)}"
        for name, entry in known.items():
            if entry.suspect or entry.address not in wanted[name]:
                return f"nobody wants {entry}"
        for (number, name), watch in self.watches.items():
            if not watch.known or watch.entry != known.get(name):
                return f"client {number} takes {watch.entry} for {known.get(name)}"
        return ""


#: One client registers a name twice while the directory is started again: the second is what it means.
TWICE = [
    ("turns", 29, ""),
    ("register", 0, "C"),
    ("restart", 0, ""),
    ("restart", 0, ""),
    ("register", 0, "C"),
    ("register", 0, "A"),
    ("unregister", 1, "C"),
    ("refuse", 0, ""),
]


@settings(max_examples=40)
@example(TWICE, min(LOOPS))
@given(STEPS, st.sampled_from(sorted(LOOPS)))
def test_in_the_end_all_agree(steps: list[tuple[str, Any, str]], loop: str) -> None:
    """Names are of those who want them, everybody who watches knows who that is, and clients know what is theirs."""
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(Play().run(steps))
