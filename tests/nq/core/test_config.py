"""What the options of a communicator make of the node under it."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from redpoll import ConfigError, nq
from redpoll.config import Config
from redpoll.nq.core.making import Verbatim, config_of
from tests.nq.support import options

HERE = nq.NetworkLocation("127.0.0.1", 7)


def made(*, server: bool = True, encrypts: bool = True, netloc: nq.NetworkLocation = HERE, **given: Any) -> Config:
    """The node's options that come of these."""
    return config_of(options(netloc, **given), server=server, encrypts=encrypts)


def test_a_server_listens_and_a_client_does_not() -> None:
    """The server's place is where it listens; a client announces none."""
    assert (made().host, made().port) == ("127.0.0.1", 7)
    assert made(server=False).listen is False


def test_its_id_is_the_nodes() -> None:
    """Who a communicator is, and what proves it, is who its node is."""
    given = options(HERE, secret=b"s" * 16)
    config = config_of(given, server=True, encrypts=True)
    assert (config.identity, config.secret) == (given.id.bytes, b"s" * 16)


def test_times_are_the_options() -> None:
    """Keep-alive and comeback are as given, and no put expires by itself."""
    config = made(keepalive=3.0, resume=7.0)
    assert (config.keepalive, config.resume, config.timeout) == (3.0, 7.0, None)


@pytest.mark.parametrize(("size", "fragment"), [(4096, 4096), (2**30, 2**30), (16 * 2**20, 16 * 2**20)])
def test_fragments_are_the_transport_size(size: int, fragment: int) -> None:
    """A message above `transport_size` travels in fragments of that size."""
    assert made(transport_size=size).fragment_size == fragment


@pytest.mark.parametrize("size", [1, 1023, 1024, 1025, 2**40, 2**63 - 1])
def test_the_largest_message_is_told_in_units(size: int) -> None:
    """What the other end is told is rounded down, and still takes a message of the largest size with its header."""
    told = made(message_size=size).max_message_size // 1024 * 1024
    assert told > size or size == 2**63 - 1


def test_what_is_confirmed_by_get_is_not_released() -> None:
    """It stands in the window until it is got, so the window is wider than the queue, whose bound is to be met first."""
    assert made().auto_release is True
    each: list[dict[str, Any]] = [{"confirm": "get"}, {"full": "drop"}]
    for given in each:
        config = made(queue_size=100, queue_bytes=10**9, **given)
        assert config.auto_release is False
        assert config.effective_window > 100
        assert config.window_bytes > 10**9
        assert made(**given).effective_window == 65_535


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_plain_on_loopback(host: str) -> None:
    """There nobody reads along."""
    assert made(netloc=nq.NetworkLocation(host, 7)).encryption is False


@pytest.mark.parametrize("server", [False, True])
@pytest.mark.parametrize("host", ["10.0.0.1", "0.0.0.0", "::", "example.org"])  # none is listened at
def test_plain_off_loopback_is_refused(host: str, server: bool) -> None:
    """Elsewhere it is to be said that this is meant, by the argument that the error names."""
    there = nq.NetworkLocation(host, 7)
    with pytest.raises(ConfigError, match="allow_plain=True"):
        made(netloc=there, server=server)
    assert made(netloc=there, server=server, allow_plain=True).encryption is False


def test_with_security_it_encrypts(tmp_path: Path) -> None:
    """On loopback too: the server shows its certificate and asks for none, a client trusts that file and checks names."""
    security = nq.SecurityOptions(tmp_path / "key.pem", tmp_path / "cert.pem")
    server, client = made(security=security), made(security=security, server=False)
    assert server.encryption is client.encryption is True
    assert server.tls is not None
    assert client.tls is not None
    assert (server.tls.certificate, server.tls.client_certificate) == (security.cert, "none")  # type: ignore[union-attr]
    assert (client.tls.ca, client.tls.check_names) == (security.cert, True)  # type: ignore[union-attr]


def test_what_encrypts_below_the_node() -> None:
    """Where what carries links encrypts them the node does not, and needs no files."""
    config = made(security=nq.SecurityOptions(), encrypts=False)
    assert config.encryption is False
    assert config.tls is None


@pytest.mark.parametrize(("key", "cert", "missing"), [("key.pem", None, "certificate"), (None, "cert.pem", "key")])
def test_a_server_needs_both_files(key: str | None, cert: str | None, missing: str) -> None:
    """The error names the one that is missing; a client needs neither."""
    security = nq.SecurityOptions(key, cert)
    with pytest.raises(ConfigError, match=missing):
        made(security=security)
    assert made(security=security, server=False).encryption is True


def test_a_client_needs_a_port() -> None:
    """The port that the system is to choose is a server's."""
    anywhere = nq.NetworkLocation("127.0.0.1", 0)
    assert made(netloc=anywhere).port == 0
    with pytest.raises(ConfigError, match="a client dials a port"):
        made(netloc=anywhere, server=False)


def test_bytes_stay_where_they_are() -> None:
    """What the node is given and what it hands on is the caller's, not copied."""
    serializer, body = Verbatim(), bytearray(1_000_000)
    tracemalloc.start()
    try:
        assert serializer.encode(body) is body
        assert serializer.decode(body) is body
        assert tracemalloc.get_traced_memory()[1] < 10_000
    finally:
        tracemalloc.stop()
