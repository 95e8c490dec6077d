"""RabbitMQ for tests: a server and a cluster of a test run's own, of which each test has a virtual host of its own.

They start with the first test that asks for them. A test may kill and freeze servers: they serve again before the next one.
Where RabbitMQ is not installed such a test fails, and names the command that installs it.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.rabbitmq import RabbitMQ, Server
from redpoll.testing.certificates import Certificates
from tests.ports import free_port

#: Seconds in which the servers of the cluster notice that one of them is frozen.
TICK = 4
#: Bytes of a server's log in the report of a failed test.
TAIL = 20_000

_logs = pytest.StashKey[dict[Path, int]]()
_numbers = itertools.count(1)


class Broker:
    """A virtual host of one test.

    Args:
        rabbitmq: Its servers, which other tests share.

    Attributes:
        servers: The servers.
        url: What clients connect to, with all servers.
        server: The first server, the only one where it is no cluster.
    """

    def __init__(self, rabbitmq: RabbitMQ) -> None:
        self.servers = rabbitmq.servers
        self.server = self.servers[0]
        self._name = f"test-{next(_numbers)}"
        self.url = rabbitmq.url + self._name
        self._users: set[str] = set()
        self._limits: dict[str, str] = {}
        self._blocked = False
        # One call for both: each starts a program.
        self.server.evaluate(f'rabbit_vhost:add(<<"{self._name}">>, <<"tests">>), {self._permission("guest")}')

    def delete(self) -> None:
        """Delete it, and all that is in it, and its users; the servers are as before it."""
        if self._blocked:
            self.block(False)
        limits = [f"application:set_env(rabbit, {name}, {value})" for name, value in self._limits.items()]
        users = [f'rabbit_auth_backend_internal:delete_user(<<"{name}">>, <<"tests">>)' for name in self._users]
        self.server.evaluate(", ".join([*limits, *users, f'rabbit_vhost:delete(<<"{self._name}">>, <<"tests">>)']))

    def user(self, name: str, url: str) -> str:
        """Make a user that may do all, and return a URL of this virtual host as the user's."""
        self.server.evaluate(f'rabbit_auth_backend_internal:add_user(<<"{name}">>, <<"secret">>, <<"tests">>)')
        self._users.add(name)
        self.permit(name)
        return url.replace("guest:guest", f"{name}:secret")

    def permit(self, user: str, read: str = ".*", configure: str = ".*") -> None:
        """Let a user do all, but read from and configure what the expressions match alone."""
        self.server.evaluate(self._permission(user, read, configure))

    def permit_topics(self, user: str, exchange: str, write: str) -> None:
        """Let a user publish to an exchange of topics only what the expression matches."""
        self.server.evaluate(
            f'rabbit_auth_backend_internal:set_topic_permissions(<<"{user}">>, <<"{self._name}">>, <<"{exchange}">>, '
            f'<<"{write}">>, <<".*">>, <<"tests">>)'
        )

    def _permission(self, user: str, read: str = ".*", configure: str = ".*") -> str:
        return (
            f'rabbit_auth_backend_internal:set_permissions(<<"{user}">>, <<"{self._name}">>, <<"{configure}">>, <<".*">>, '
            f'<<"{read}">>, <<"tests">>)'
        )

    def url_of(self, server: Server) -> str:
        """Return the URL of one server."""
        return server.url + self._name

    def queues(self) -> list[str]:
        """Return the names of the queues."""
        return self._names(f'[Name || {{resource, _, queue, Name}} <- rabbit_amqqueue:list_names(<<"{self._name}">>)]')

    def exchanges(self) -> list[str]:
        """Return the names of the exchanges, but for those that each virtual host has."""
        listed = f'[element(4, element(2, Each)) || Each <- rabbit_exchange:list(<<"{self._name}">>)]'
        return [name for name in self._names(listed) if name and not name.startswith("amq.")]

    def connections(self) -> int:
        """Return how many connections there are, of all virtual hosts and all servers."""
        return int(self.server.evaluate("length(rabbit_networking:connections())"))

    def names_of_connections(self) -> set[str]:
        """Return the ends of all connections, which tell one from a later one."""
        listed = (
            "[rabbit_data_coercion:to_binary(Name) || [{name, Name}] <- rabbit_networking:connection_info_all([name])]"
        )
        return set(self._names(listed))

    def channels(self) -> int:
        """Return how many channels there are, of all virtual hosts and all servers."""
        return int(self.server.evaluate("length(rabbit_channel:list())"))

    def consumers(self) -> int:
        """Return how many consumers there are."""
        return int(self.server.evaluate(f'length(rabbit_amqqueue:consumers_all(<<"{self._name}">>))'))

    def listen_encrypted(self, port: int, ca: Path, certificate: Path) -> None:
        """Listen at a further port, encrypted, until the server restarts."""
        options = f'{{cacertfile, "{ca}"}}, {{certfile, "{certificate}"}}, {{keyfile, "{certificate}"}}'
        self.server.evaluate(
            f'rabbit_networking:start_ssl_listener({{"127.0.0.1", {port}}}, [{options}, {{verify, verify_none}}], 2)'
        )

    def encrypted_url(self, certificates: Certificates) -> str:
        """Return a URL of this virtual host at a further port that is encrypted, with the CA of its certificate."""
        port, ca = free_port(), certificates.ca
        self.listen_encrypted(port, ca, certificates.issue("rabbitmq", names=["localhost"]))
        return f"amqps://guest:guest@localhost:{port}/{self._name}?ca={ca}"

    def heartbeats(self) -> list[int]:
        """Return the seconds of the heartbeat of each connection."""
        listed = "[Seconds || [{timeout, Seconds}] <- rabbit_networking:connection_info_all([timeout])]"
        return [
            int(each)
            for each in re.findall(r"\d+", self.server.evaluate(f'lists:flatten(io_lib:format("~w", [{listed}]))'))
        ]

    def close_connections(self, reason: str = "test") -> None:
        """Close all connections, as an operator does."""
        self.server.evaluate(
            f'[rabbit_networking:close_connection(Each, "{reason}") || Each <- rabbit_networking:connections()], ok'
        )

    def set_limit(self, name: str, value: int) -> None:
        """Change a setting of the server for connections that are made from now on, until the end of the test."""
        self._limits.setdefault(name, self.server.evaluate(f"application:get_env(rabbit, {name}, 0)"))
        self.server.evaluate(f"application:set_env(rabbit, {name}, {value})")

    def limit_queues(self, number: int) -> None:
        """Let the virtual host have so many queues at most."""
        self.server.evaluate(
            f'rabbit_vhost_limit:set(<<"{self._name}">>, [{{<<"max-queues">>, {number}}}], <<"tests">>)'
        )

    def block(self, blocked: bool = True) -> None:
        """Raise the alarm for memory, at which the servers read no more from whoever publishes, or end it."""
        self._blocked = blocked
        for each in self.servers:
            each.evaluate(f"vm_memory_monitor:set_vm_memory_high_watermark({'0.00001' if blocked else '0.4'})")

    def _names(self, listed: str) -> list[str]:
        return re.findall(r'<<"(.*?)">>', self.server.evaluate(f'lists:flatten(io_lib:format("~p", [{listed}]))'))


async def serves(server: Server) -> None:
    """Wait until a server that was started serves."""
    await asyncio.to_thread(server.wait_ready)


def _run(tmp_path_factory: pytest.TempPathFactory, size: int, tick: int | None) -> Iterator[RabbitMQ]:
    try:
        rabbitmq = RabbitMQ(tmp_path_factory.mktemp("rabbitmq"), size, tick, free_port)
    except FileNotFoundError as error:
        pytest.fail(str(error), pytrace=False)
    with rabbitmq:
        yield rabbitmq


@pytest.fixture(scope="session")
def _rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    """The server of a test run."""
    yield from _run(tmp_path_factory, 1, None)


@pytest.fixture(scope="session")
def _rabbitmq_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    """The cluster of a test run."""
    yield from _run(tmp_path_factory, 3, TICK)


def _lend(request: pytest.FixtureRequest, rabbitmq: RabbitMQ) -> Iterator[Broker]:
    request.node.stash[_logs] = {each.log: each.log.stat().st_size for each in rabbitmq.servers}
    broker = Broker(rabbitmq)
    yield broker
    rabbitmq.recover()
    broker.delete()


@pytest.fixture
def rabbitmq(request: pytest.FixtureRequest, _rabbitmq: RabbitMQ) -> Iterator[Broker]:
    """A virtual host on a server."""
    yield from _lend(request, _rabbitmq)


@pytest.fixture
def rabbitmq_cluster(request: pytest.FixtureRequest, _rabbitmq_cluster: RabbitMQ) -> Iterator[Broker]:
    """A virtual host on a cluster of three servers."""
    yield from _lend(request, _rabbitmq_cluster)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Put into the report of a failed test what its servers logged meanwhile."""
    report = yield
    for log, start in item.stash.get(_logs, {}).items() if report.failed else ():
        logged = log.read_bytes()[start:]
        report.sections.append((f"{log}, from byte {start}", logged[-TAIL:].decode(errors="replace")))
    return report
