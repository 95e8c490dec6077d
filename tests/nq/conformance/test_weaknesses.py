"""Section 5 of the contract: what must not happen here, a number a test. What is of one protocol alone stands with that."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from redpoll import Message, Refused, nq
from redpoll.blocking import QueueNode
from tests.blocking.support import PATIENCE, in_thread, until
from tests.cli.support import environment
from tests.nq.support import End, Outcome, World

BUFFERS = nq.SerializationOptions(nq.BufferSerializer().load, nq.BufferSerializer().dump)

CHILD = """
import sys, uuid
from pathlib import Path
from redpoll import nq
protocol, purpose, host, port, own, folder, prefix = sys.argv[1:]
security = nq.SecurityOptions(key=Path(folder, "key.pem"), cert=Path(folder, "cert.pem")) if folder else None
options = nq.CommunicatorOptions(
    id=uuid.UUID(own), netloc=nq.NetworkLocation(host, int(port)), security=security, secret=b"x" * 16,
    prefix=prefix,
)
end = nq.new(protocol, purpose, options)
end.ready()
print("ready", flush=True)
for line in sys.stdin:
    end.put(line.strip())
"""


class Child:
    """An end in a process of its own, which puts what it is told to and gets nothing."""

    def __init__(self, world: World, purpose: str, own: uuid.UUID) -> None:
        self.id = own
        security = world.security
        folder = "" if security is None or security.cert is None else str(security.cert.parent)
        place = (world.netloc.host, str(world.netloc.port))
        command = [sys.executable, "-c", CHILD, world.protocol, purpose, *place, str(own), folder, world.prefix]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, env=environment(), stdin=pipe, stdout=pipe, text=True)

    def up(self) -> None:
        """Wait until it is."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def put(self, text: str) -> None:
        """Have it put something."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()

    def freeze(self) -> None:
        """As SIGSTOP does, which takes a moment."""
        os.kill(self.process.pid, signal.SIGSTOP)
        tasks = Path(f"/proc/{self.process.pid}/task")

        def stopped() -> bool:
            return all(
                each.joinpath("stat").read_text().rpartition(")")[2].split()[0] == "T" for each in tasks.iterdir()
            )

        until(stopped, "the process to stand still")

    def kill(self) -> None:
        """As a crash does."""
        self.process.kill()
        self.process.wait(PATIENCE)


@contextmanager
def child(world: World, purpose: str, own: uuid.UUID | None = None) -> Iterator[Child]:
    """An end in a process of its own, killed behind this."""
    made = Child(world, purpose, own or uuid.uuid4())
    try:
        made.up()
        yield made
    finally:
        made.kill()
        for pipe in (made.process.stdin, made.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass


def sockets_only(world: World) -> bool:
    """Whether strangers reach the end itself, and not a broker."""
    return world.protocol != "mqtt"


# Security


def test_01_what_comes_before_a_hello_is_refused(world: World) -> None:
    """1: a node that does not say hello puts nothing, and what it sends meets no pickle."""
    server = world.server()
    if world.protocol != "tcp" or world.security is not None:
        pytest.skip("such nodes use plain TCP")
    with QueueNode(listen=False) as node:
        for header in (b"", b"R", b"nq fin", b"other"):
            sent = node.send(Message(b"cposix\nsystem\n", str(world.netloc), header=header))
            with pytest.raises(Refused):
                sent.result(PATIENCE)
        sent = node.send(Message(b"garbage", str(world.netloc), header=b"nq hello"))
        with pytest.raises(Refused, match="no hello of nq"):
            sent.result(PATIENCE)
    with pytest.raises(TimeoutError):
        server.get(timeout=0)


def test_02_a_pickle_that_calls_is_refused_by_get(world: World) -> None:
    """2: what names more than the allow-list has raises, is not called, and leaves the queue as it was."""
    server = world.server()
    pickles = nq.PickleSerializer(allow=lambda name: True)
    client = world.met(serialization=nq.SerializationOptions(pickles.load, pickles.dump))
    client.put(eval)
    client.put("good").result()
    with pytest.raises(nq.UnpicklingError, match=r"builtins\.eval"):
        server.get()
    assert server.get().data == "good"


def test_03_an_id_is_not_taken_over(world: World) -> None:
    """3: who says that it is a client that is linked gets nothing of what is that one's, and does it no harm."""
    server, client = world.pair()
    thief = world.client(id=client.id)
    with pytest.raises(ConnectionRefusedError):
        thief.ready()
    server.put("secret", client.id).result()
    assert client.get(timeout=0).data == "secret"
    with pytest.raises(ConnectionError):
        thief.get()


def test_04_a_client_that_claims_the_servers_id(world: World) -> None:
    """4: it is refused, and the server's `get` hears nothing of it."""
    server, client = world.pair()
    same = world.client(id=server.id)
    with pytest.raises(ConnectionRefusedError):
        same.ready()
    assert isinstance(same.put("x").exception(), ConnectionError)
    client.put("y").result()
    assert server.get(timeout=0).data == "y"


def _strange(world: World) -> list[bytes]:
    own = uuid.uuid4().bytes
    return [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        own + b"\xff" * 200,
        (1 << 63).to_bytes(8, "big") + b"x" * 100,
        (16).to_bytes(8, "big") + own,
        os.urandom(4000),
    ]


def test_05_06_strange_bytes(world: World) -> None:
    """5, 6: whatever strangers send, claims of a size among it, nothing comes of it, and others are served."""
    if not sockets_only(world):
        pytest.skip("strangers meet the broker, not redpoll")
    server, client = world.pair()
    for data in _strange(world):
        with socket.create_connection((world.netloc.host, world.netloc.port)) as stranger:
            stranger.sendall(data)
            stranger.shutdown(socket.SHUT_WR)
            stranger.settimeout(PATIENCE)
            try:
                while stranger.recv(65536):
                    pass
            except ConnectionResetError:
                pass
    client.put("still served").result()
    assert server.get(timeout=0).data == "still served"
    with pytest.raises(TimeoutError):
        server.get(timeout=0)


# Liveness


def test_08_a_port_scan(world: World) -> None:
    """8: connections that come and go leave nothing: who is served is, and the close ends."""
    if not sockets_only(world):
        pytest.skip("strangers meet the broker, not redpoll")
    server, client = world.pair()
    for _ in range(50):
        socket.create_connection((world.netloc.host, world.netloc.port)).close()
    client.put("x").result()
    client.close()
    server.close()
    assert server.get().data == "x"


def _lost(outcome: Callable[[], Any]) -> BaseException:
    with pytest.raises(ConnectionError) as caught:
        outcome()
    return caught.value


def test_08_a_client_that_is_killed(world: World) -> None:
    """8: after its time its session is over: puts fail, who gets of it is told, others are served, and the close ends."""
    told: list[uuid.UUID] = []
    server = world.server(resume=0.2, events=nq.EventOptions(fin=told.append))
    with child(world, "client") as victim:
        other = world.met()
        victim.put("last words")
        assert server.get().data == "last words"
        getting = in_thread(lambda: server.get(victim.id))
        victim.kill()
        put = server.put("x")
        error = put.exception()
        assert type(error) is ConnectionResetError
        assert error.args == (victim.id,)
        assert put.peers[other.id].result() is None
        assert _lost(lambda: getting.result(PATIENCE)).args == (victim.id,)
        until(lambda: told == [victim.id], "the event")
        assert other.get(timeout=0).data == "x"
        other.close()
        server.close()


def test_08_a_server_that_is_killed(world: World) -> None:
    """8: after its time its clients' puts fail, who gets is told, and their close ends."""
    with child(world, "server") as victim:
        client = world.client(resume=0.2)
        client.ready()
        getting = in_thread(client.get)
        victim.kill()
        error = client.put("x").exception()
        assert type(error) is ConnectionResetError
        assert error.args == (victim.id,)
        assert _lost(lambda: getting.result(PATIENCE)).args == (victim.id,)
        client.close()


def test_08_the_close_of_a_client_whose_server_is_killed(world: World) -> None:
    """8: a close that waits for a server which is killed meanwhile ends, and what was not confirmed fails."""
    with child(world, "server") as victim:
        client = world.client(resume=0.2)
        client.ready()
        victim.freeze()
        put = client.put("x")
        closing = in_thread(client.close)
        until(lambda: client.endpoint.closing, "the client to be closing")
        victim.kill()
        closing.result(PATIENCE)
        assert isinstance(put.exception(), ConnectionError)


def test_09_a_server_that_stands_still(world: World) -> None:
    """9: each wait for a frozen server has a limit, and the close of its client ends with what is open failed."""
    with child(world, "server") as frozen:
        client = world.client()
        client.ready()
        frozen.freeze()
        put = client.put("x")
        with pytest.raises(TimeoutError):
            client.get(timeout=0.01)
        client.close(timeout=0.05)
        error = put.exception()
        assert type(error) is ConnectionAbortedError
        assert error.args == (client.id,)


def test_09_a_frozen_peer_expires(world: World) -> None:
    """9: one that answers no pings is gone after `keepalive` and `resume`, though its connection stands."""
    server = world.server(keepalive=0.1, resume=0.1)
    with child(world, "client") as frozen:
        frozen.freeze()
        error = server.put("x", frozen.id).exception()
        assert type(error) is ConnectionResetError
        assert error.args == (frozen.id,)
        server.close()


def test_09_a_stranger_that_says_nothing(world: World) -> None:
    """9: one that connects and does not shake hands holds nobody up."""
    if not sockets_only(world):
        pytest.skip("strangers meet the broker, not redpoll")
    server = world.server()
    with socket.create_connection((world.netloc.host, world.netloc.port)):
        client = world.met()
        client.put("x").result()
        assert server.get(timeout=0).data == "x"
        client.close()
        server.close()


def test_10_an_id_comes_back_while_its_former_link_stands(world: World) -> None:
    """10: a process that starts again with its id and its secret is served at once, and the former self is not."""
    server = world.server()
    own = uuid.uuid4()
    with child(world, "client", own) as former:
        former.put("first")
        assert server.get().data == "first"
        former.freeze()
        with child(world, "client", own) as latter:
            latter.put("second")
            assert server.get().data == "second"
        server.disconnect(own, flush=False)


# Data


def test_11_an_id_is_used_again_with_messages_unread(world: World) -> None:
    """11: after an orderly close and a comeback all that was put is got, in order, however often."""
    server = world.server()
    own = uuid.uuid4()
    for number in range(5):
        client = world.client(id=own)
        client.put(number)
        client.close()
    assert [server.get().data for _ in range(5)] == list(range(5))


def test_12_the_first_put_is_large(world: World) -> None:
    """12: a put that is made before the server has answered arrives, be it large."""
    server = world.server(serialization=BUFFERS)
    client = world.client(serialization=BUFFERS)
    put = client.put(bytes(5_000_000))
    assert put.result() is None
    assert len(server.get(timeout=0).data) == 5_000_000


def test_13_sixteen_bytes(world: World) -> None:
    """13: ids as data are data, the first of a session as well."""
    server = world.server(serialization=BUFFERS)
    client = world.client(serialization=BUFFERS)
    for end, other in ((client, server), (server, client)):
        puts = [end.put(data.bytes) for data in (end.id, other.id, uuid.UUID(int=0), end.id)]
        assert [put.exception() for put in puts] == [None] * 4
        got = [bytes(other.get(timeout=0).data) for _ in range(4)]
        assert got == [end.id.bytes, other.id.bytes, bytes(16), end.id.bytes]


def test_14_a_put_after_the_close_says_so(world: World) -> None:
    """14: none succeeds silently, to whomever; a broadcast after the close fails as well."""
    server = world.server()
    server.close()
    assert isinstance(server.put("x").exception(), ConnectionAbortedError)
    client = world.client()
    client.close()
    assert isinstance(client.put("x").exception(), ConnectionAbortedError)


def test_15_streams_are_received_whole(world: World) -> None:
    """15: what StreamSerializer hands over is full, and stays so."""
    streams = nq.SerializationOptions(nq.StreamSerializer().load, nq.StreamSerializer().dump)
    server, client = world.pair(serialization=streams)
    client.put(nq.Stream.frombuffer(b"abc")).result()
    stream = server.get(timeout=0).data
    assert bytes(stream.read(2)) == b"ab"
    assert bytes(stream.read()) == b"c"


def test_16_getting_after_the_close(world: World) -> None:
    """16: each of many threads, and each of many calls, is told."""
    server = world.server()
    server.close()
    threads = [in_thread(lambda: [_lost(server.get) for _ in range(20)]) for _ in range(5)]
    assert sum(len(each.result(PATIENCE)) for each in threads) == 100


def test_17_each_has_an_id_of_its_own(world: World) -> None:
    """17: records of options that are made alike, and communicators made without any, differ in their ids."""
    assert len({nq.CommunicatorOptions().id for _ in range(10)}) == 10
    server, client = world.pair()
    assert server.id != client.id


# Resources


def test_18_memory_is_bounded_in_bytes(world: World) -> None:
    """18: with `queue_bytes` neither end keeps more than that of a peer; the rest is told at once."""
    server = world.server(queue_bytes=100_000, serialization=BUFFERS)
    client = world.met(queue_bytes=100_000, serialization=BUFFERS)
    puts: list[Outcome] = [client.put(bytes(10_000)) for _ in range(100)]
    errors = [put.exception() for put in puts]
    assert 10 <= errors.count(None) <= 20
    assert sum(source.size for source in server.made._receive_queue._sources.values()) <= 100_000


def test_20_one_thread_for_all(world: World) -> None:
    """20: however many communicators there are, one thread moves their bytes."""
    server = world.server()
    clients: list[End] = [world.met() for _ in range(5)]
    server.put("x").result()
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("redpoll loop") == (1 if world.facade == "threads" else 0)
    assert [client.get(timeout=0).data for client in clients] == ["x"] * 5
