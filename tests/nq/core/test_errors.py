"""What users of the facade are told when something is wrong: in the words of its own options."""

from __future__ import annotations

import socket
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from redpoll import nq
from redpoll.blocking import PoolNode
from redpoll.errors import ConfigError, DialFailed, MessageTooLarge, TLSError, UsageError
from redpoll.nq.core.errors import check_peers, in_words, start_error
from redpoll.testing.certificates import Certificates
from redpoll.tls.failures import not_encrypted
from tests.ports import free_port

HINT = "security=SecurityOptions"


def at(port: int, **options: object) -> nq.CommunicatorOptions:
    """Options with a port of 127.0.0.1."""
    return nq.CommunicatorOptions(netloc=nq.NetworkLocation(port=port), **options)  # type: ignore[arg-type]


@pytest.fixture
def server() -> Iterator[nq.Communicator]:
    """One at a port that the system chose."""
    with nq.new(purpose="server", options=at(0)) as made:
        yield made
        made.close(0)


def test_hints_name_options_that_are_here() -> None:
    """What the node says of its own options is said of `security`; what names none is left as it is."""
    told = in_words(not_encrypted(None))
    assert isinstance(told, TLSError)
    assert HINT in (told.hint or "")
    assert "encryption" not in str(told)
    expired = TLSError("its certificate has expired", None, "renew it at the other end")
    assert in_words(expired) is expired
    other = DialFailed(None, "refused")
    assert in_words(other) is other


def test_what_a_start_raises() -> None:
    """What the system refuses is an OSError with its number; the file of a CA is `cert` here."""
    in_use = ConfigError("port", 1, "is in use")
    in_use.__cause__ = OSError(98, "Address already in use")
    told = start_error(in_use)
    assert isinstance(told, OSError)
    assert told.errno == 98
    assert "is in use" in str(told)
    refused = ConfigError("host", "x", "no broker there")
    refused.__cause__ = ConnectionRefusedError("no number")
    told = start_error(refused)
    assert isinstance(told, OSError)
    assert str(told).startswith("host=")
    missing = start_error(ConfigError("ca", "no.pem", "cannot read no.pem"))
    assert str(missing) == "cert='no.pem': cannot read no.pem"
    no_ca = start_error(ConfigError("ca", "a.pem", "it contains no CA certificate", "give ca=, the file"))
    assert "ca=" not in str(no_ca)
    assert "signed the server's" in str(no_ca)
    key = ConfigError("key", "no.pem", "cannot read no.pem")
    assert start_error(key) is key


def test_peers_are_ids() -> None:
    """What is no id is refused by its type, and what may have been meant is said."""
    check_peers([uuid.uuid4()], "never")
    with pytest.raises(UsageError, match=r"not str \(this instead\)"):
        check_peers([uuid.uuid4(), "name"], "this instead")


def test_puts_and_gets_of_what_is_no_peer(server: nq.Communicator) -> None:
    """A second thing to put, and seconds by their place, are no peers: an error says what was meant."""
    with pytest.raises(UsageError, match="put takes one thing"):
        server.put("one", "two")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="timeout="):
        server.get(5)  # type: ignore[arg-type]


@pytest.mark.asyncio
async def test_puts_and_gets_of_what_is_no_peer_in_asyncio() -> None:
    """The same with asyncio."""
    async with nq.aio.new(purpose="server", options=at(0)) as server:
        with pytest.raises(UsageError, match="put takes one thing"):
            server.put("one", ["two"])  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="timeout="):
            await server.get(5)  # type: ignore[arg-type]


def test_any_free_port(server: nq.Communicator) -> None:
    """`netloc` has the port that a server took for port 0; a client's is what its options say."""
    assert server.options.netloc.port == 0
    port = server.netloc.port
    assert port > 0
    with nq.new(options=at(port)) as client:
        assert client.netloc == server.netloc == nq.NetworkLocation("127.0.0.1", port)
        client.put("found").result(10)
    assert server.get().data == "found"


@pytest.mark.asyncio
async def test_any_free_port_in_asyncio() -> None:
    """The same with asyncio."""
    async with nq.aio.new(purpose="server", options=at(0)) as server:
        assert server.netloc.port > 0
        assert server.options.netloc.port == 0
        await server.close(0)


def test_nobody_answers() -> None:
    """`ready` says why the last attempt failed, and its cause is that."""
    port = free_port()
    with nq.new(options=at(port)) as client, pytest.raises(TimeoutError, match="Connection refused") as caught:
        client.ready(0.5)
    assert isinstance(caught.value.__cause__, DialFailed)


def test_who_answers_hangs_up() -> None:
    """`ready` says so where somebody takes connections and closes each of them."""
    with socket.create_server(("127.0.0.1", 0)) as other, nq.new(options=at(other.getsockname()[1])) as client:
        closing = threading.Thread(target=hang_up, args=(other,))
        closing.start()
        with pytest.raises(TimeoutError, match="lost the peer"):
            client.ready(1)
        closing.join()


def hang_up(other: socket.socket) -> None:
    """Close the first three connections, of which each was listened to."""
    for _ in range(3):
        connection, _ = other.accept()
        with connection:
            connection.recv(65_536)
            connection.shutdown(socket.SHUT_RDWR)


def test_who_answers_is_no_server() -> None:
    """`ready` says what it was told by who answers, but is no server of this kind."""
    with PoolNode(lambda message: message.refuse("what is that?"), port=0) as node:
        with nq.new(options=at(node.address.port)) as client, pytest.raises(ConnectionRefusedError) as caught:
            client.ready(10)
    assert "what is that?" in str(caught.value.__cause__)


def test_ready_when_closed(server: nq.Communicator) -> None:
    """What is closed does not become ready: it is told as to puts and gets."""
    client = nq.new(options=at(server.netloc.port))
    client.close()
    with pytest.raises(ConnectionAbortedError) as caught:
        client.ready()
    assert caught.value.args == (client.id,)


@pytest.mark.asyncio
async def test_closed_before_it_was_started() -> None:
    """With asyncio too, also if it was never started; puts and gets end with the same."""
    client = nq.aio.new(options=at(free_port()))
    await client.close()
    with pytest.raises(ConnectionAbortedError):
        await client.ready()
    with pytest.raises(ConnectionAbortedError):
        await client.put(1)
    with pytest.raises(ConnectionAbortedError):
        await client.get()


def test_plain_and_encrypted(server: nq.Communicator, redpoll_pki: Certificates) -> None:
    """A client that encrypts and a server that does not: the error names the option of both."""
    security = nq.SecurityOptions(cert=redpoll_pki.ca)
    with nq.new(options=at(server.netloc.port, security=security)) as client:
        with pytest.raises(TLSError, match=HINT):
            client.ready(10)
        with pytest.raises(TLSError, match=HINT):
            client.put("x").result(10)


@pytest.mark.asyncio
async def test_files_that_are_not_there(tmp_path: Path) -> None:
    """A certificate that cannot be read is told by the option's name."""
    options = at(free_port(), security=nq.SecurityOptions(cert=tmp_path / "no.pem"))
    with pytest.raises(ConfigError, match=r"^cert="):
        nq.new(options=options)
    with pytest.raises(ConfigError, match=r"^cert="):
        await nq.aio.new(options=options).start()


@pytest.mark.parametrize("purpose", ["server", "client"])
@pytest.mark.parametrize("protocol", list(nq.Protocol))
def test_files_that_cannot_be_used(protocol: str, purpose: str, tmp_path: Path) -> None:
    """They are told by `new`, over each protocol: nothing is dialled with them, and nothing tried again."""
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    for file in (text, tmp_path / "no.pem"):
        options = at(free_port(), security=nq.SecurityOptions(file, file))
        with pytest.raises(ConfigError, match=rf"^(cert|certificate|key)='.*{file.name}'"):
            nq.new(protocol, purpose, options)


@pytest.mark.parametrize("protocol", ["tcp", "grpc"])
def test_a_certificate_without_that_of_its_ca(protocol: str, redpoll_pki: Certificates, tmp_path: Path) -> None:
    """A server shows it, and those who trust the CA come in: the server itself trusts nobody."""
    issued = redpoll_pki.issue().read_text()
    mark = "-----END CERTIFICATE-----\n"
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.write_text(issued.partition(mark)[0] + mark)
    key.write_text(issued[issued.index("-----BEGIN PRIVATE KEY") :])
    security = nq.SecurityOptions(key, cert)
    trust = nq.SecurityOptions(cert=redpoll_pki.ca)
    with nq.new(protocol, "server", at(0, security=security)) as server:
        with nq.new(protocol, options=at(server.netloc.port, security=trust)) as client:
            client.put("x").result(10)
        assert server.get(timeout=0).data == "x"


@pytest.mark.parametrize("protocol", ["tcp", "grpc"])
def test_a_certificate_that_has_expired(protocol: str, redpoll_pki: Certificates) -> None:
    """A server does not start with it."""
    file = redpoll_pki.issue(days=2, expired=True)
    with pytest.raises(ConfigError, match="expired on"):
        nq.new(protocol, "server", at(0, security=nq.SecurityOptions(file, file)))


def test_localhost_is_here() -> None:
    """Links with "localhost" stay on this machine, so they may be plain; those with other names may not."""
    netloc = nq.NetworkLocation("localhost", 0)
    nq.new(purpose="server", options=nq.CommunicatorOptions(netloc=netloc)).close()
    with pytest.raises(ConfigError, match="allow_plain=True"):
        nq.new(options=nq.CommunicatorOptions(netloc=nq.NetworkLocation("localhost.example.org", 2998)))


def test_what_is_too_large(server: nq.Communicator) -> None:
    """The error names the option that it is too large for."""
    options = at(server.netloc.port, connection=nq.ConnectionOptions(message_size=100))
    with nq.new(options=options) as client:
        with pytest.raises(MessageTooLarge, match="raise message_size at both ends"):
            client.put(b"x" * 101)
