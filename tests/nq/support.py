"""What the tests of the facade share: its ends over each protocol, plain and encrypted, for threads and for asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar
from uuid import UUID, uuid4

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from redpoll import nq
from redpoll.nq.core.making import AnyEndpoint
from tests.blocking.support import PATIENCE, until
from tests.ports import free_port

T = TypeVar("T")

_CONNECTION = {each.name for each in fields(nq.ConnectionOptions)}


def options(netloc: nq.NetworkLocation, **given: Any) -> nq.CommunicatorOptions:
    """Options of a communicator, those of its connection among them."""
    connection = {name: given.pop(name) for name in list(given) if name in _CONNECTION}
    return nq.CommunicatorOptions(netloc=netloc, connection=nq.ConnectionOptions(**connection), **given)


def certificate(folder: Path) -> nq.SecurityOptions:
    """A certificate of localhost that issued itself, which clients take for their CA, and its key, as files."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    names = [x509.DNSName("localhost"), x509.IPAddress(IPv4Address("127.0.0.1"))]
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = nq.SecurityOptions(key=folder / "key.pem", cert=folder / "cert.pem")
    assert files.key is not None
    assert files.cert is not None
    files.cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    files.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files


# One interface over both facades


class Outcome:
    """The future of a put, for a thread that waits for it, whichever facade it is of."""

    def __init__(self, future: Any, loop: LoopThread | None) -> None:
        self.future = future
        self._loop = loop
        self._ended: Future[None] = Future()
        if loop is None:
            future.add_done_callback(lambda _: self._ended.set_result(None))
        else:
            loop.call(future.add_done_callback, lambda _: self._ended.set_result(None))

    def exception(self, timeout: float = PATIENCE) -> BaseException | None:
        """Its error; fails the test if it does not end."""
        self._ended.result(timeout)
        error: BaseException | None = self.future.exception()
        return error

    def result(self, timeout: float = PATIENCE) -> Any:
        """What it has for a result, which is None; raises its error."""
        self._ended.result(timeout)
        return self.future.result()

    def done(self) -> bool:
        """Whether it has ended."""
        return bool(self.future.done())

    def cancelled(self) -> bool:
        """Whether it was taken back."""
        return bool(self.future.cancelled())

    def cancel(self) -> bool:
        """Take it back."""
        return bool(self.future.cancel() if self._loop is None else self._loop.call(self.future.cancel))

    @property
    def futures(self) -> list[Outcome]:
        """Those of each peer."""
        return [Outcome(each, self._loop) for each in self.future.futures]

    @property
    def peers(self) -> dict[UUID, Outcome]:
        """The same, by peer."""
        return {peer: Outcome(each, self._loop) for peer, each in self.future.peers.items()}


class LoopThread:
    """An event loop in a thread, for what belongs to one."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="test loop")
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there, and wait."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(3 * PATIENCE)

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function there, and wait."""

        async def work() -> T:
            return function(*args)

        return self.run(work())

    def end(self) -> None:
        """End it, and what is left on it."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE)
        self.loop.close()


class End:
    """A communicator of either facade, as threads use it."""

    def __init__(self, made: Any, loop: LoopThread | None) -> None:
        self.made = made
        self._loop = loop
        if loop is not None:
            loop.run(made.start())

    @property
    def id(self) -> UUID:
        """Who it is."""
        found: UUID = self.made.id
        return found

    @property
    def endpoint(self) -> AnyEndpoint:
        """What it is on its loop."""
        found: AnyEndpoint = self.made._resident.endpoint if self._loop is None else self.made._endpoint
        return found

    def on_loop(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function on its loop, and wait."""
        if self._loop is not None:
            return self._loop.call(function, *args)
        result: T = self.made._resident.handover.run(function, *args)
        return result

    def _do(self, result: Any) -> Any:
        return result if self._loop is None else self._loop.run(result)

    def ready(self, timeout: float | None = PATIENCE) -> None:
        """Wait for the server."""
        self._do(self.made.ready(timeout))

    def put(self, data: Any, *peers: UUID) -> Outcome:
        """Put, without waiting."""
        put = self.made.put
        return Outcome(put(data, *peers) if self._loop is None else self._loop.call(put, data, *peers), self._loop)

    def get(self, *peers: UUID, timeout: float | None = PATIENCE) -> nq.Message[Any]:
        """Get."""
        message: nq.Message[Any] = self._do(self.made.get(*peers, timeout=timeout))
        return message

    def close(self, timeout: float | None = None, flush: bool = True) -> None:
        """Close."""
        self._do(self.made.close(timeout, flush))

    def disconnect(self, peer: UUID, flush: bool = True) -> None:
        """End the session with a client."""
        if self._loop is None:
            self.made.disconnect(peer, flush)
        else:
            self._loop.call(self.made.disconnect, peer, flush)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(flush=error is None)


def begun(end: End, count: int = 1) -> None:
    """Wait until so many wait for a message of an end."""
    until(lambda: len(end.made._receive_queue._waiters) >= count, f"{count} that get")


# The protocols


def _anywhere(request: pytest.FixtureRequest) -> nq.NetworkLocation:
    return nq.NetworkLocation("127.0.0.1", free_port())


def _at_the_broker(request: pytest.FixtureRequest) -> nq.NetworkLocation:
    encrypted = request.getfixturevalue("security") is not None
    found: nq.NetworkLocation = request.getfixturevalue("encrypted_broker" if encrypted else "broker")
    return found


#: Where the ends of a test meet, by protocol: at a port of their own, or at what a fixture of that protocol gives.
PLACES: dict[str, Callable[[pytest.FixtureRequest], nq.NetworkLocation]] = {
    "tcp": _anywhere,
    "grpc": _anywhere,
    "mqtt": _at_the_broker,
}


@dataclass
class World:
    """Where a test makes its ends.

    Attributes:
        protocol: What carries them.
        security: The files, if they are encrypted.
        facade: Which of both.
        netloc: Where they meet.
        prefix: What keeps those apart that meet at one broker.
    """

    protocol: str
    security: nq.SecurityOptions | None
    facade: Literal["threads", "aio"]
    netloc: nq.NetworkLocation
    prefix: str = field(default_factory=lambda: f"test/{uuid4().hex}")
    _ends: list[End] = field(default_factory=list)
    _loop: LoopThread | None = None

    def make(self, purpose: str, **given: Any) -> End:
        """Make an end, which is closed behind the test."""
        chosen = options(
            given.pop("netloc", self.netloc), **{"security": self.security, "prefix": self.prefix, **given}
        )
        if self.facade == "threads":
            end = End(nq.new(self.protocol, purpose, chosen), None)
        else:
            self._loop = self._loop or LoopThread()
            end = End(nq.aio.new(self.protocol, purpose, chosen), self._loop)
        self._ends.append(end)
        return end

    def server(self, **given: Any) -> End:
        """A server."""
        return self.make("server", **given)

    def client(self, **given: Any) -> End:
        """A client."""
        return self.make("client", **given)

    def pair(self, **given: Any) -> tuple[End, End]:
        """A server, and a client that it knows."""
        server = self.server(**given)
        return server, self.met(**given)

    def met(self, **given: Any) -> End:
        """A client that has met its server, which knows it from then on."""
        client = self.client(**given)
        client.ready()
        return client

    def end(self) -> None:
        """Close everything."""
        for end in reversed(self._ends):
            end.close(0, flush=False)
        self._ends.clear()  # the library of gRPC keeps two sockets as long as there is any object of it
        if self._loop is not None:
            self._loop.end()
