"""Clients that come and go by the dozen, killed ones and strangers among them: nobody notices, and nothing grows."""

from __future__ import annotations

import random
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from redpoll import nq
from tests.blocking.support import PATIENCE, in_thread
from tests.nq.support import World, certificate
from tests.nq.survival.conftest import LITTLE, Yard
from tests.nq.survival.programs import Running

CROWD = 50

#: Fifty processes that start at once leave an end without a processor for a second or more: that is no silence.
PATIENT = {"resume": 2.0, "keepalive": 1.0}

#: Bytes that memory may differ by, between two moments at which the same is there: what was free once is kept.
SLACK = 32 * 1024 * 1024

#: The first bytes of a handshake, of which more belong to it: a port, and half of a timeout.
HALF = bytes.fromhex("0bb6 05")


def _connect_and_go(netloc: nq.NetworkLocation) -> None:
    socket.create_connection(netloc, 1.0).close()


def _reset(netloc: nq.NetworkLocation) -> None:
    with socket.create_connection(netloc, 1.0) as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _garbage(netloc: nq.NetworkLocation) -> None:
    with socket.create_connection(netloc, 1.0) as link:
        link.sendall(random.Random(0).randbytes(1000))


def _half_a_handshake(netloc: nq.NetworkLocation) -> None:
    with socket.create_connection(netloc, 1.0) as link:
        link.sendall(HALF)


def _tls(netloc: nq.NetworkLocation) -> None:
    context = ssl.create_default_context()
    with socket.create_connection(netloc, 1.0) as link:
        link.settimeout(0.05)
        with context.wrap_socket(link, server_hostname="localhost"):
            pass


def _http(netloc: nq.NetworkLocation) -> None:
    with socket.create_connection(netloc, 1.0) as link:
        link.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")


SCANS = (_connect_and_go, _reset, _garbage, _half_a_handshake, _tls, _http)


@contextmanager
def scanned(netloc: nq.NetworkLocation) -> Iterator[None]:
    """Strangers come all the time."""
    stop = threading.Event()

    def scan() -> None:
        while not stop.is_set():
            for each in SCANS:
                with suppress(OSError):
                    each(netloc)
                time.sleep(0.005)

    scanning = in_thread(scan)
    try:
        yield
    finally:
        stop.set()
        scanning.result(PATIENCE)


def _crowd(yard: Yard, draw: random.Random) -> None:
    """Fifty clients at the same time, of which every fifth is killed on its way."""
    clients = [yard.start("both", count=5, connection=PATIENT) for _ in range(CROWD)]
    killed = clients[::5]
    for client in killed:
        client.wait_lines(draw.randrange(10))
        client.kill()
    for client in clients:
        if client not in killed:
            assert client.ended() == []


def _of_a_crowd(yard: Yard, seconds: float) -> None:
    server = yard.start("serve", connection=PATIENT).wait_ready()
    draw = random.Random(0)
    _crowd(yard, draw)
    steady = yard.start("both", count=1000, connection=PATIENT)
    before = _at_rest(yard, server)
    end = time.monotonic() + seconds
    with scanned(yard.netloc):
        while True:
            _crowd(yard, draw)
            if time.monotonic() > end:
                break
    assert steady.ended() == []
    memory, files = _at_rest(yard, server)
    assert files <= before[1]
    # The most that was held at a time may have been more than before: what leaks grows with each further crowd.
    for _ in range(3):
        if memory <= before[0] + SLACK:
            break
        before = memory, files
        _crowd(yard, draw)
        memory, _ = _at_rest(yard, server)
    else:
        pytest.fail(f"memory grew from {before[0]:,} to {memory:,} bytes, and does so each time")
    assert server.computed(0.5) < LITTLE
    assert yard.start("finish", connection=PATIENT).ended() == []
    assert server.ended() == []


def _at_rest(yard: Yard, server: Running) -> tuple[int, int]:
    """Memory and files of the server when those that were killed are given up: a hello waits for that."""
    assert yard.start("greet", connection=PATIENT).ended() == []
    spent = server.spent()
    return spent.memory, spent.files


@pytest.mark.parametrize("protocol", ["tcp"], indirect=True)
def test_coming_and_going(yard: Yard) -> None:
    """A hundred clients, and strangers among them, leave nothing in the server, and one that stays is served throughout."""
    _of_a_crowd(yard, 0)


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_coming_and_going_for_a_minute(yard: Yard) -> None:
    """The same for a minute."""
    _of_a_crowd(yard, 60)


@pytest.mark.parametrize("protocol", ["tcp", "grpc"], indirect=True)
@pytest.mark.parametrize("encrypted", ["server", "client"])
def test_of_those_that_do_not_agree_on_encryption(
    world: World, encrypted: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A plain client of a server that encrypts, or the other way, is not served, and those that agree do not notice."""
    files = certificate(tmp_path_factory.mktemp("tls"))
    server_has, stranger_has = (files, None) if encrypted == "server" else (None, files)
    server = world.server(security=server_has)
    client = world.client(security=server_has)
    client.ready()
    strangers = [world.client(security=stranger_has, resume=0.5) for _ in range(5)]
    puts = [stranger.put("from nobody") for stranger in strangers]
    for number in range(200):
        client.put(number)
        assert server.get() == nq.Message(client.id, number)
    assert list(server.endpoint.sessions) == [client.id]
    for stranger, put in zip(strangers, puts, strict=True):
        stranger.close(0.1)
        assert isinstance(put.exception(), ConnectionError)
    client.close()
