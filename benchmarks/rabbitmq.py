"""A RabbitMQ of one's own, a server or a cluster on this machine: for benchmarks, and for tests."""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

#: Seconds that a server has to start, or to join its cluster, on a machine that is busy.
READY_TIMEOUT = 120.0
STOP_TIMEOUT = 30.0
PAUSE = 0.05
INSTALL = "apt-get install rabbitmq-server"
#: Debian's own script; the one in /usr/sbin runs the server as another user, in the folders of the system.
PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
#: Erlang's directory of nodes, which the server would otherwise start by itself and leave running, and its command line.
DAEMON, CALL = "epmd", "erl_call"
#: Numbers the calls of this process: a server refuses two connections at a time by one name.
CALLS = itertools.count()
#: Ends a process with the thread that started it, however that ends.
GUARD = ("setpriv", "--pdeathsig", "KILL")

SETTINGS = """\
listeners.tcp.1 = 127.0.0.1:{port}
log.file = false
log.console = true
disk_free_limit.absolute = 1MB
"""
CLUSTER = """\
cluster_partition_handling = pause_minority
cluster_formation.peer_discovery_backend = classic_config
"""


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody uses now."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def check_installed() -> None:
    """Check that RabbitMQ is installed.

    Raises:
        FileNotFoundError: It is not; says how to install it.
    """
    if not PROGRAM.exists() or None in map(shutil.which, (DAEMON, CALL)):
        raise FileNotFoundError(f"RabbitMQ is not installed: {INSTALL}")


class Server:
    """A server of RabbitMQ, which can be killed and frozen, and started again with its data.

    Args:
        folder: Where its files go.
        port: Where it listens, on 127.0.0.1.
        settings: Its configuration, besides that.
        environment: The variables of its processes that all servers of a cluster share.
        arguments: Further ones for Erlang.

    Attributes:
        port: Where it listens.
        name: Its name among Erlang's nodes.
        url: What clients connect to.
        log: The file with its log.
    """

    def __init__(
        self, folder: Path, port: int, settings: str, environment: dict[str, str], arguments: Sequence[str] = ()
    ) -> None:
        self.port = port
        self.name = f"redpoll{port}@localhost"
        self.url = f"amqp://guest:guest@127.0.0.1:{port}/"
        self.log = folder / f"{port}.log"
        self._folder = folder
        file = folder / f"{port}.conf"
        file.write_text(SETTINGS.format(port=port) + settings)
        # Without a shell of Erlang, though the script is told that there may be one: then it becomes the server.
        erlang = ("-noinput", "-kernel", "inet_dist_use_interface", "{127,0,0,1}", *arguments)
        self._environment = {
            **environment,
            "RABBITMQ_ALLOW_INPUT": "true",
            "RABBITMQ_CONFIG_FILE": str(file),
            "RABBITMQ_NODENAME": self.name,
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": " ".join(erlang),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self.frozen = False

    @property
    def process(self) -> int:
        """The number of its process; 0 before it was started."""
        return 0 if self._process is None else self._process.pid

    @property
    def running(self) -> bool:
        """True if its process is there, also a frozen one."""
        return self._process is not None and self._process.poll() is None

    @property
    def serves(self) -> bool:
        """True if it is up and says so by itself, which leaves no lines in its log as `wait_ready` does."""
        try:
            return self.evaluate("rabbit_boot_state:get()") == "ready"
        except RuntimeError:
            return False

    def start(self) -> None:
        """Start its process; it serves later, see `wait_ready`."""
        if self.running:
            return
        with self.log.open("ab") as log:
            # In the group of this process, so that they end with it when it has to be killed.
            self._process = subprocess.Popen(
                [*GUARD, str(PROGRAM)],
                env=self._environment,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait_ready(self) -> None:
        """Wait until it serves: it answers the header of a protocol that it does not speak with the one that it does.

        Raises:
            RuntimeError: It ended, or takes too long; with its log.
        """
        deadline = time.monotonic() + READY_TIMEOUT
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1) as client:
                    client.sendall(b"AMQP\x00\x00\x00\x00")
                    if client.recv(8):
                        return
            except OSError:
                pass
            if not self.running or time.monotonic() > deadline:
                raise RuntimeError(f"RabbitMQ does not listen: {self.log.read_text()}")
            time.sleep(PAUSE)

    def stop(self) -> None:
        """End it as an operator does: it closes its connections, and writes what it has."""
        self.thaw()
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """End it at once, whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self.frozen = False

    def freeze(self) -> None:
        """Let it do nothing more, and say nothing: the system keeps its connections."""
        self._signal(signal.SIGSTOP)
        self.frozen = True

    def thaw(self) -> None:
        """Let it continue."""
        if self.frozen:
            self._signal(signal.SIGCONT)
            self.frozen = False

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def evaluate(self, expression: str) -> str:
        """Evaluate an expression of Erlang in it, and return the text of its value: what rabbitmqctl does in a second or two.

        Raises:
            RuntimeError: It does not answer, or the expression failed.
        """
        # The name that it takes at random is that of every call of the same second.
        caller = f"c{os.getpid()}x{next(CALLS)}"
        done = subprocess.run(
            [CALL, "-h", caller, "-sname", self.name, "-e"],  # its cookie is in the file that the server has it from
            input=f"{expression}.\n",
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=STOP_TIMEOUT,
            check=False,
        )
        said = done.stdout.strip()
        if done.returncode or not said.startswith("{ok, "):
            raise RuntimeError(f"RabbitMQ cannot evaluate {expression!r}: {said}{done.stderr}")
        return said.removeprefix("{ok, ").removesuffix("}")


class RabbitMQ:
    """Servers of RabbitMQ on 127.0.0.1, one or a cluster, with their files below `folder`; killed at the end of the block.

    Args:
        folder: Where its files go.
        size: How many servers; 2 or more are a cluster, of which a minority pauses when it is cut off.
        tick: Seconds of Erlang's net_ticktime, in which servers notice that one of them is frozen; None is the default, 60.
        port: Finds free ports. A server that is to start again needs ports that the system does not give out meanwhile.

    Attributes:
        servers: The servers.
        url: What clients connect to: all of them.

    Raises:
        FileNotFoundError: RabbitMQ is not installed.
        RuntimeError: It does not start; with its log.
    """

    def __init__(
        self, folder: Path, size: int = 1, tick: int | None = None, port: Callable[[], int] = free_port
    ) -> None:
        check_installed()
        environment = {
            **os.environ,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(port()),
            "HOME": str(folder),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        }
        cookie = folder / ".erlang.cookie"
        cookie.write_text(secrets.token_hex(16))
        cookie.chmod(0o400)
        ports = [port() for _ in range(size)]
        settings = ""
        if size > 1:
            lines = (f"cluster_formation.classic_config.nodes.{each} = redpoll{each}@localhost\n" for each in ports)
            settings = CLUSTER + "".join(lines)
        arguments = () if tick is None else ("-kernel", "net_ticktime", str(tick))
        self.servers = [
            Server(folder, each, settings, {**environment, "RABBITMQ_DIST_PORT": str(port())}, arguments)
            for each in ports
        ]
        self.url = f"amqp://guest:guest@{','.join(f'127.0.0.1:{each}' for each in ports)}/"
        self._daemon: subprocess.Popen[bytes] | None = None
        try:
            with (folder / "epmd.log").open("wb") as log:
                self._daemon = subprocess.Popen(
                    [*GUARD, DAEMON], env=environment, cwd=folder, stdout=log, stderr=subprocess.STDOUT
                )
            # The others find the first one; if all start at once each may become a cluster of its own.
            self.servers[0].start()
            self.servers[0].wait_ready()
            self.recover()
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()

    def recover(self) -> None:
        """Let all servers serve: start those that are down, continue frozen ones, and wait until they are one cluster.

        Raises:
            RuntimeError: They do not; with a log.
        """
        for each in self.servers:
            each.thaw()
            each.start()
        for each in self.servers:
            if not each.serves:
                each.wait_ready()
        deadline = time.monotonic() + READY_TIMEOUT
        while len(self.servers) > 1 and not all(map(self._sees_all, self.servers)):
            if time.monotonic() > deadline:
                raise RuntimeError(f"RabbitMQ is no cluster: {self.servers[0].log.read_text()}")
            time.sleep(PAUSE)

    def _sees_all(self, server: Server) -> bool:
        try:
            found = server.evaluate("length(rabbit_mnesia:cluster_nodes(running))")
        except RuntimeError:  # it pauses, as it was cut off
            return False
        return found == str(len(self.servers))

    def kill(self) -> None:
        """End all of it."""
        for each in self.servers:
            each.kill()
        if self._daemon is not None:
            self._daemon.kill()
            self._daemon.wait()
