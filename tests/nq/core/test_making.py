"""What a protocol and a purpose stand for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from redpoll import ConfigError, UsageError, nq
from redpoll.nq.core.client import ClientEndpoint
from redpoll.nq.core.making import checked, make_endpoint, one_of
from redpoll.nq.core.receive_queue import ThreadReceiveQueue
from redpoll.nq.core.server import ServerEndpoint
from tests.nq.support import options
from tests.ports import free_port


@pytest.mark.parametrize("purpose", ["server", nq.Purpose.SERVER])
@pytest.mark.parametrize("protocol", ["tcp", nq.Protocol.TCP])
def test_words_and_members_are_the_same(protocol: str, purpose: str) -> None:
    """A string does where a member of the enum does."""
    with nq.new(protocol, purpose, options(nq.NetworkLocation("127.0.0.1", 0))) as server:
        assert (server.protocol, server.purpose) == ("tcp", "server")
        assert server.netloc.port != 0


def test_a_client_over_tcp_is_the_default() -> None:
    """So it was in net-queue; the options are a default record, of its own."""
    with nq.new() as first, nq.new() as second:
        assert (first.protocol, first.purpose) == ("tcp", "client")
        assert first.options.netloc == nq.NetworkLocation()
        assert first.id == first.options.id != second.id


@pytest.mark.parametrize("purpose", nq.Purpose)
@pytest.mark.parametrize("protocol", nq.Protocol)
def test_modules_of_net_queue(protocol: nq.Protocol, purpose: nq.Purpose) -> None:
    """Each end has the class that a program imports by its name in net-queue, such as `tcp.server.Communicator`."""
    made = import_module(f"redpoll.nq.{protocol}.{purpose}").Communicator
    assert issubclass(made, nq.Communicator)
    assert (made.protocol, made.purpose) == (protocol, purpose)


@pytest.mark.parametrize(
    ("kind", "word"), [(nq.Protocol, "udp"), (nq.Purpose, "peer"), (nq.Protocol, ""), (nq.Purpose, "..")]
)
def test_words_that_are_none(kind: Any, word: str) -> None:
    """The error says which there are, and nothing is imported for them."""
    with pytest.raises(UsageError, match="there are '"):
        one_of(kind, word)


def test_protocols_that_are_none() -> None:
    """`new` says so as well, for either argument."""
    with pytest.raises(UsageError, match="is no protocol"):
        nq.new("udp")
    with pytest.raises(UsageError, match="is no purpose"):
        nq.new("tcp", "peer")


def test_options_that_are_none() -> None:
    """What is no record of options is told, with its type."""
    given = options(nq.NetworkLocation())
    assert checked(given) is given
    with pytest.raises(UsageError, match="not NetworkLocation"):
        checked(nq.NetworkLocation())  # type: ignore[arg-type]


@pytest.mark.parametrize(("purpose", "kind"), [("server", ServerEndpoint), ("client", ClientEndpoint)])
def test_endpoints(purpose: str, kind: type) -> None:
    """Both facades have the same endpoints, which ask whose peers are there."""
    given = options(nq.NetworkLocation("127.0.0.1", free_port()))
    receive_queue = ThreadReceiveQueue()
    endpoint = make_endpoint(nq.Protocol.TCP, nq.Purpose(purpose), given, receive_queue, lambda event, peer: None)
    assert type(endpoint) is kind
    assert receive_queue.alive == endpoint.is_there


def test_what_is_wrong_is_told_before_anything_is_open() -> None:
    """Plain off loopback raises where it is made, and leaves nothing behind."""
    with pytest.raises(ConfigError, match="allow_plain"):
        nq.new("tcp", "server", options(nq.NetworkLocation("192.0.2.1", 7)))
