"""Section 2.1 of the contract: which error comes where, and with what."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from redpoll import ConfigError, Undecodable, nq
from tests.blocking.support import PATIENCE, in_thread, until
from tests.nq.support import World


def test_who_closed_is_gone(world: World) -> None:
    """Row "ConnectionResetError(peer)": a put for a client that closed fails with its id, by the future."""
    server, client = world.pair()
    client.close()
    until(lambda: not server.endpoint.sessions, "the session to be over")
    error = server.put("x", client.id).exception()
    assert type(error) is ConnectionResetError
    assert error.args == (client.id,)


def test_a_put_after_the_close_fails(world: World) -> None:
    """Row "put-after-close": it fails with ConnectionAbortedError(own id), by the future, for all and for one, every time."""
    server, client = world.pair()
    client.close()
    server.close()
    for end, other in ((server, client), (client, server)):
        for put in (end.put("x"), end.put("x", other.id), end.put("x", other.id, uuid.uuid4()), end.put("x")):
            error = put.exception()
            assert type(error) is ConnectionAbortedError
            assert error.args == (end.id,)


def test_a_put_while_it_closes_fails(world: World) -> None:
    """Row "puts issued while close() drains": they fail with ConnectionAbortedError(own id), and are not sent."""
    server, client = world.pair(confirm="get")
    open_put = client.put("before")
    closing = in_thread(client.close)
    until(lambda: client.endpoint.closing, "the client to be closing")
    error = client.put("meanwhile").exception()
    assert type(error) is ConnectionAbortedError
    assert error.args == (client.id,)
    assert not closing.done()
    assert server.get().data == "before"
    assert open_put.result() is None
    closing.result(PATIENCE)
    server.close()
    with pytest.raises(ConnectionAbortedError):
        server.get()


def test_what_cannot_be_written_is_raised_by_put(world: World) -> None:
    """Row "dump errors raised by put()": as the serializer raised it, and nothing is sent."""
    server, client = world.pair()
    with pytest.raises(nq.PicklingError):
        client.put(lambda: None)
    client.put(1).result()
    assert server.get(timeout=0).data == 1


class Picky:
    """A serializer that cannot read some of what it wrote."""

    def __init__(self, error: BaseException) -> None:
        self.buffers = nq.BufferSerializer()
        self.error = error

    def load(self, stream: nq.Stream) -> bytes:
        data = bytes(self.buffers.load(stream))
        if data == b"bad":
            raise self.error
        return data


@pytest.mark.parametrize("error", [ZeroDivisionError("not this one"), GeneratorExit("not this one")])
@pytest.mark.parametrize("confirm", ["receive", "get"])
def test_what_cannot_be_read_is_raised_by_get(world: World, confirm: str, error: BaseException) -> None:
    """Row "load errors raised by get()": as the serializer raised it, that message is gone, and the next one comes."""
    picky = Picky(error)
    given: Any = {"serialization": nq.SerializationOptions(picky.load, picky.buffers.dump), "confirm": confirm}
    server, client = world.pair(**given)
    puts = [client.put(data) for data in (b"bad", b"good")]
    with pytest.raises(type(error), match="not this one"):
        server.get()
    assert server.get().data == b"good"
    outcome = puts[0].exception()
    if confirm == "get":
        assert isinstance(outcome, Undecodable)
    else:
        assert outcome is None
    assert puts[1].result() is None


@pytest.mark.parametrize("left_out", ["key", "cert"])
def test_a_server_needs_key_and_certificate(world: World, files: nq.SecurityOptions, left_out: str) -> None:
    """Row "RuntimeError if a TLS server lacks key or cert": a ConfigError that names what is missing."""
    if world.protocol == "mqtt":
        pytest.skip("the broker has both")
    given = {"key": files.key, "cert": files.cert, left_out: None}
    with pytest.raises(ConfigError, match="certificate" if left_out == "cert" else "key"):
        world.server(security=nq.SecurityOptions(**given))


def test_ends_that_do_not_agree_on_encryption(world: World, files: nq.SecurityOptions) -> None:
    """Beyond "RuntimeError": where one end encrypts and the other does not nothing is put, and the client may be told."""
    server = world.server()
    client = world.client(security=None if world.security else files, resume=0.1)
    put = client.put("secret")
    with pytest.raises((ConnectionError, TimeoutError)):
        client.ready(0.5)
    client.close(0)
    assert isinstance(put.exception(), ConnectionError)
    with pytest.raises(TimeoutError):
        server.get(timeout=0)
