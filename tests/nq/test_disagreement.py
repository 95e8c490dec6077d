"""One end encrypts and the other does not: both that can know learn why, on each protocol, and what to do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from redpoll import TLSError, nq
from redpoll.testing.certificates import Certificates
from tests.nq.mqtt.support import Mosquitto
from tests.nq.support import options

HERE = nq.NetworkLocation(port=0)


def told(client: nq.Communicator, problem: str) -> None:
    """Whatever is waited for says it, with what to do."""
    put = client.put("x")
    for wait in (lambda: client.ready(10), lambda: client.get(timeout=10), put.result):
        with pytest.raises(TLSError, match=problem) as caught:
            wait()
        assert caught.value.hint is not None
        assert "security" in caught.value.hint
    client.close()


@pytest.fixture
def files(redpoll_pki: Certificates) -> tuple[nq.SecurityOptions, nq.SecurityOptions]:
    """What a server and its clients have."""
    pem = redpoll_pki.issue("server")
    return nq.SecurityOptions(key=pem, cert=pem), nq.SecurityOptions(cert=redpoll_pki.ca)


@pytest.mark.parametrize("protocol", ["tcp", "grpc"])
def test_a_plain_client(protocol: str, files: tuple[nq.SecurityOptions, nq.SecurityOptions]) -> None:
    """It gives up where its server wants TLS."""
    with nq.new(protocol, "server", options(HERE, security=files[0])) as server:
        told(nq.new(protocol, "client", options(server.netloc)), "the peer uses TLS, and this .* sends plaintext")


@pytest.mark.parametrize(
    ("protocol", "problem"),
    [("tcp", "the peer sends plaintext, and this node expects TLS"), ("grpc", "it speaks no TLS")],
)
def test_a_plain_server(protocol: str, problem: str, files: tuple[nq.SecurityOptions, nq.SecurityOptions]) -> None:
    """A client that encrypts gives up."""
    with nq.new(protocol, "server", options(HERE)) as server:
        told(nq.new(protocol, "client", options(server.netloc, security=files[1])), problem)


@contextlib.contextmanager
def broker(folder: Path, *lines: str) -> Iterator[nq.NetworkLocation]:
    """Run one; where it is."""
    running = Mosquitto(folder, *lines)
    running.start()
    try:
        yield nq.NetworkLocation("127.0.0.1", running.address.port)
    finally:
        running.kill()


@pytest.mark.broker
def test_a_plain_end_at_a_broker(redpoll_pki: Certificates, tmp_path: Path) -> None:
    """A server cannot be made where its broker wants TLS, and a client gives up."""
    pem = redpoll_pki.issue("broker", ["127.0.0.1"])
    problem = "the MQTT broker wants TLS, and this end speaks plaintext to it"
    with broker(tmp_path, f"certfile {pem}", f"keyfile {pem}", "allow_anonymous true") as place:
        with pytest.raises(TLSError, match=problem):
            nq.new("mqtt", "server", options(place))
        told(nq.new("mqtt", "client", options(place)), problem)


@pytest.mark.broker
def test_a_broker_that_is_plain(files: tuple[nq.SecurityOptions, nq.SecurityOptions], tmp_path: Path) -> None:
    """A server that encrypts cannot be made, and a client gives up."""
    problem = "the MQTT broker speaks no TLS"
    with broker(tmp_path) as place:
        with pytest.raises(TLSError, match=problem):
            nq.new("mqtt", "server", options(place, security=files[1]))
        told(nq.new("mqtt", "client", options(place, security=files[1])), problem)
