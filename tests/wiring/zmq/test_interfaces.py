"""Where objects of the old module can be reached."""

from __future__ import annotations

import pytest

from redpoll import Address, UsageError
from redpoll.wiring.zmq.interfaces import PORT, Place, directory_at, place_of


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        (None, None, 0),
        ("", None, 0),
        (":5555", None, 5555),
        ("*", "0.0.0.0", 0),
        ("*:5555", "0.0.0.0", 5555),
        ("10.0.0.1", "10.0.0.1", 0),
        ("10.0.0.1:5555", "10.0.0.1", 5555),
        ("localhost:0", "localhost", 0),
        ("[::1]", "::1", 0),
        ("[::1]:5555", "::1", 5555),
        ("::1", "::1", 0),
        ("lo", "127.0.0.1", 0),
        ("lo:5555", "127.0.0.1", 5555),
        ("zmq.tcp://10.0.0.1:5555", "10.0.0.1", 5555),
        ("zmq.tcp://lo:5555", "127.0.0.1", 5555),
    ],
)
def test_interfaces(text: str | None, host: str | None, port: int) -> None:
    """Cards and addresses, with ports and without; what says nothing, and what says everything."""
    assert place_of(text) == Place(host, port)


@pytest.mark.parametrize(
    "text", ["a:b:c", "10.0.0.1:", "10.0.0.1:99999", "*:99999", "[::1", "http://10.0.0.1", "a b", 7]
)
def test_no_interface(text: object) -> None:
    """What is none is an error."""
    with pytest.raises(UsageError):
        place_of(text)


@pytest.mark.parametrize("scheme", ["zmq.pgm", "sctp", "amqp"])
def test_other_transports(scheme: str) -> None:
    """What later versions spoke beside TCP is an error that says what is spoken."""
    with pytest.raises(UsageError, match=rf"{scheme} is not spoken here.*TCP is"):
        place_of(f"{scheme}://eth0:5555")


def test_a_card_without_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network card that has none is an error that names it, and no host is looked up."""
    monkeypatch.setattr("socket.if_nameindex", lambda: [(7, "down0")])
    with pytest.raises(UsageError, match=r"the network card 'down0' has no IPv4 address"):
        place_of("down0")


def test_directories() -> None:
    """A host alone means the port of old; no host no directory."""
    assert directory_at(None) is None
    assert str(directory_at("127.0.0.1")) == f"127.0.0.1:{PORT}"
    assert str(directory_at("example.org")) == "example.org:5682"
    assert str(directory_at("127.0.0.1:99")) == "127.0.0.1:99"
    assert str(directory_at("::1")) == str(directory_at("[::1]")) == "[::1]:5682"
    assert str(directory_at("[::1]:99")) == "[::1]:99"
    assert str(directory_at("unix:/run/d:1")) == "unix:/run/d:1"
    assert str(directory_at("inproc:d:1]")) == "inproc:d:1]"
    address = Address.parse("h:1")
    assert directory_at(address) is address


@pytest.mark.parametrize("text", ["", "a:b", "a:99999", 7, "a b"])
def test_no_directories(text: object) -> None:
    """What is no address is an error."""
    with pytest.raises(UsageError):
        directory_at(text)
