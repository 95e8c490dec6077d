"""Options that several commands share."""

from __future__ import annotations

import pytest

from redpoll.address import Address
from redpoll.cli.options import encryption_options, listen_address, listen_options, peer_address, seconds
from redpoll.config import Config
from redpoll.errors import UsageError
from redpoll.tls import TLS


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("2998", "127.0.0.1:2998"),
        ("0", "127.0.0.1:0"),
        ("localhost:1", "localhost:1"),
        ("[::1]:1", "[::1]:1"),
        ("unix:/tmp/x", "unix:/tmp/x"),
    ],
)
def test_a_port_alone_is_on_this_machine(text: str, address: str) -> None:
    """What to listen on is an address, or a port on 127.0.0.1, and becomes options that a node takes."""
    parsed = listen_address(text)
    assert parsed == Address.parse(address)
    config = Config(**listen_options(parsed))
    assert isinstance(config.host, str)
    assert Address.of_host(config.host, config.port or 0) == parsed


@pytest.mark.parametrize("text", ["", "x", "65536", "-1", "²", "inproc:x"])
def test_what_cannot_be_listened_on(text: str) -> None:
    """What is no address of a process is refused."""
    with pytest.raises(UsageError):
        listen_address(text)


@pytest.mark.parametrize("text", ["", "2998", "127.0.0.1:0", "inproc:x", "::1:1"])
def test_what_cannot_be_sent_to(text: str) -> None:
    """A port alone, port 0 and what is no address of another process are refused."""
    with pytest.raises(UsageError):
        peer_address(text)


def test_times_are_seconds_or_none() -> None:
    """A time is a positive number of seconds, or no limit at all."""
    assert [seconds(text) for text in ("5", "0.25", "1e3", "none", "None ")] == [5.0, 0.25, 1000.0, None, None]


@pytest.mark.parametrize("text", ["0", "-1", "inf", "nan", "", "soon"])
def test_what_is_no_time(text: str) -> None:
    """Zero, less, what is no number and what has no end are refused."""
    with pytest.raises(UsageError, match="--timeout"):
        seconds(text)


def test_plaintext_has_to_be_asked_for() -> None:
    """Without --plain the node decides by the address; with it nothing is encrypted."""
    assert encryption_options(plain=False, tls=None, ca=None) == {"encryption": "auto"}
    assert encryption_options(plain=True, tls=None, ca=None) == {"encryption": False}


@pytest.mark.parametrize(("tls", "ca"), [("a.pem", None), ("a.pem", "ca.pem"), (None, "system")])
def test_certificates_encrypt_everywhere(tls: str | None, ca: str | None) -> None:
    """With --tls or --ca everything is encrypted, on this machine too; --plain beside them is an error."""
    options = encryption_options(plain=False, tls=tls, ca=ca)
    assert options == {"encryption": True, "tls": TLS(certificate=tls, ca=ca)}
    with pytest.raises(UsageError, match="--plain contradicts --tls and --ca"):
        encryption_options(plain=True, tls=tls, ca=ca)
