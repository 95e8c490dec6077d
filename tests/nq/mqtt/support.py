"""A mosquitto of the tests' own, and nodes whose links it carries."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from redpoll import Address, Node, nq
from redpoll.nq.mqtt.carrier import MqttCarrier
from redpoll.nq.mqtt.listener import MqttListener
from tests.node.support import until
from tests.ports import free_port

#: Seconds that the broker has to start, on a machine that is busy.
START_PATIENCE = 20.0


class Mosquitto:
    """A broker in a process of its own, on a port that stays the same.

    Attributes:
        address: Where it is.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self._program = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")
        if self._program is None:
            pytest.fail("there is no mosquitto: apt-get install mosquitto")
        self.address = Address("tcp", "127.0.0.1", free_port())
        self._file = folder / "mosquitto.conf"
        lines = [f"listener {self.address.port} 127.0.0.1", "user root", *(options or ("allow_anonymous true",))]
        self._file.write_text("\n".join([*lines, ""]))
        self._log = folder / "mosquitto.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start, and wait until it accepts connections."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([str(self._program), "-c", str(self._file)], stdout=log, stderr=log)
        end = time.monotonic() + START_PATIENCE
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.address.port), 1.0):
                return
            if self._process.poll() is not None or time.monotonic() > end:
                pytest.fail(f"mosquitto did not start: {self._log.read_text()}")
            time.sleep(0.01)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def freeze(self) -> None:
        """Let it stand still."""
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once, whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """Kill it and start another one in its place."""
        self.kill()
        self.start()

    @property
    def resident(self) -> int:
        """Bytes of memory that it uses."""
        assert self._process is not None
        pages = Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")


def passwords(folder: Path, *users: str) -> Path:
    """A file with users, whose password is "secret"."""
    program = shutil.which("mosquitto_passwd")
    if program is None:
        pytest.fail("there is no mosquitto_passwd: apt-get install mosquitto")
    file = folder / "passwords"
    file.touch(0o600)
    for user in users:
        subprocess.run([program, "-b", str(file), user, "secret"], check=True)
    return file


class Reader(asyncio.BufferedProtocol):
    """Keeps what it reads, and what it is told at the end."""

    def __init__(self) -> None:
        self.buffer = bytearray(1 << 20)
        self.got = bytearray()
        self.lost: list[Exception | None] = []
        self.transport: asyncio.Transport | None = None
        self.act: Callable[[], object] | None = None

    async def ends(self) -> Exception | None:
        """Its link ends: why."""
        await until(lambda: self.lost, "the end of a link")
        (error,) = self.lost
        return error

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep it."""
        self.transport = transport  # type: ignore[assignment]

    def get_buffer(self, sizehint: int) -> bytearray:
        """Always the same one."""
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Keep what came."""
        self.got += self.buffer[:nbytes]
        if self.act is not None:
            self.act()

    def pause_writing(self) -> None:
        """Whoever writes here does not mind."""

    def resume_writing(self) -> None:
        """Nor that it may go on."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Note it."""
        self.lost.append(exc)


class Lobby:
    """An acceptor: lets as many in as it may, each with a reader."""

    def __init__(self, places: int = 100) -> None:
        self.places = places
        self.readers: list[Reader] = []
        self.remotes: list[Address] = []

    def admits(self, remote: Address) -> bool:
        """Whether there is a place."""
        return len(self.readers) < self.places

    def accepted(self, remote: Address) -> Reader:
        """A reader for one more."""
        self.remotes.append(remote)
        self.readers.append(Reader())
        return self.readers[-1]


class Tap:
    """A stranger at the broker: reads all topics, and publishes what it likes."""

    def __init__(self, address: Address) -> None:
        self.came: list[tuple[str, bytes]] = []
        self._client = Client(CallbackAPIVersion.VERSION2)
        self._subscribed = False
        self._client.on_message = lambda _c, _d, message: self.came.append((message.topic, bytes(message.payload)))
        self._client.on_subscribe = lambda *_: setattr(self, "_subscribed", True)
        self._client.connect(address.host, address.port)
        self._client.subscribe("#")
        self.until(lambda: self._subscribed)

    def look(self) -> None:
        """Read what is there, or comes at once."""
        sock: Any = self._client.socket()
        writes = [sock] if self._client.want_write() else []
        reads, writes, _ = select.select([sock], writes, [], 0.01)
        if writes:
            self._client.loop_write()
        if reads:
            self._client.loop_read()

    def until(self, condition: Callable[[], object]) -> None:
        """Read until something is so."""
        end = time.monotonic() + START_PATIENCE
        while not condition():
            assert time.monotonic() < end, "waited in vain for what others publish"
            self.look()

    async def meanwhile(self, condition: Callable[[], object]) -> None:
        """Read until something is so, while the loop goes on."""

        def looked() -> object:
            self.look()
            return condition()

        await until(looked, "what others publish")

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Publish, and see it come back: the broker has dealt with it."""
        before = len(self.came)
        self._client.publish(topic, payload, retain=retain)
        self.until(lambda: (topic, payload) in self.came[before:])

    def flushed(self) -> list[tuple[str, bytes]]:
        """All that was published up to now."""
        self.publish("flush", os.urandom(8))
        came, self.came = self.came, []
        return [each for each in came if each[0] != "flush"]

    def close(self) -> None:
        """Leave."""
        self._client.disconnect()
        while self._client.socket() is not None:
            self.look()


@contextlib.contextmanager
def tapping(address: Address) -> Iterator[Tap]:
    """A stranger for a while."""
    tap = Tap(address)
    try:
        yield tap
    finally:
        tap.close()


def carried(
    broker: Mosquitto,
    handler: Callable[[Any], Any] | None = None,
    *,
    carrier: MqttCarrier | None = None,
    **options: Any,
) -> Node[Any]:
    """A node on that broker: a server, unless it does not listen."""

    class CarriedNode(Node[Any]):
        _carrier = carrier or MqttCarrier(nq.CommunicatorOptions())

    if options.get("listen") is not False:
        options |= {"host": broker.address.host, "port": broker.address.port}
    return CarriedNode(handler, encryption=False, **options)


async def listening(broker: Mosquitto, lobby: Lobby, carrier: MqttCarrier) -> MqttListener:
    """A server without a node."""
    listener = carrier.listener(lobby, asyncio.get_running_loop(), 1)
    await listener.open((broker.address.host,), broker.address.port, lambda _: None)
    listener.accept()
    return listener


async def dialled(broker: Mosquitto, carrier: MqttCarrier) -> Reader:
    """A client without a node."""
    reader = Reader()
    await carrier.dial(broker.address, lambda: reader, asyncio.get_running_loop())
    return reader
