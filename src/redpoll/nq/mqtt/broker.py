"""One connection to an MQTT broker, by paho-mqtt, on the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redpoll.address import Address
from redpoll.errors import ConfigError, DialFailed, TLSError, UsageError
from redpoll.nq.core.probing import answers, speaks_tls
from redpoll.nq.mqtt.library import make_client
from redpoll.tls.failures import explained
from redpoll.transport.dial import in_words, tune

if TYPE_CHECKING:
    from paho.mqtt.client import Client

__all__ = ["KEEPALIVE", "Broker", "Login"]

#: Seconds without a byte after which the broker is asked whether it is there; as many later it is taken for dead. It
#: drops this end after one and a half of them.
KEEPALIVE = 5

#: Payloads that are read before the loop has its turn.
_READS = 16

#: A CONNECT without a name, and what every answer to it begins with.
_CONNECT = bytes((0x10, 12, 0, 4)) + b"MQTT" + bytes((4, 2, 0, KEEPALIVE, 0, 0))
_CONNACK = b"\x20"


@dataclass(frozen=True)
class Login:
    """How a broker is spoken to.

    Attributes:
        encrypted: Whether by TLS.
        certificate: The file of the CA that signed the broker's certificate; None is those that the system trusts.
        username: None is anonymous.
        password: Of that user.
        connect_timeout: Seconds that connecting, and TLS, may take.
        threads: Those that still connect though they were given up; each closes its socket and is gone then.
    """

    encrypted: bool = False
    certificate: Path | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    connect_timeout: float = 5.0
    threads: set[asyncio.Future[None]] = field(default_factory=set, repr=False, compare=False)

    def context(self) -> ssl.SSLContext | None:
        """What checks the broker's certificate and its name.

        Raises:
            ConfigError: The file cannot be used.
        """
        if not self.encrypted:
            return None
        try:
            context = ssl.create_default_context(cafile=self.certificate)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError("certificate", str(self.certificate), f"cannot be used: {error}") from error
        context.sslsocket_class = _Socket
        return context


class _Socket(ssl.SSLSocket):
    """Closes itself when TLS does not begin: paho drops it."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except BaseException:
            self.close()
            raise


class Broker:
    """One MQTT session, clean, all of it with QoS 0.

    Truth comes from the ends, which acknowledge, and from the numbers of payloads; QoS 1 would have the broker store and
    confirm what they confirm once more, and costs most of the throughput.

    paho's callbacks only take notes; what follows from them happens after paho has returned.
    """

    def __init__(
        self,
        address: Address,
        login: Login,
        loop: asyncio.AbstractEventLoop,
        name: str,
        receive: Callable[[str, bytes], object],
        writable: Callable[[], object],
        lost: Callable[[str], object],
    ) -> None:
        """Be closed; `connect` opens.

        Args:
            address: The broker's.
            login: How it is spoken to.
            loop: Where all this is called.
            name: This end's, which no other has.
            receive: Called with the topic and the payload of all that comes.
            writable: Called when it takes payloads again.
            lost: Called once with the reason if the connection ends otherwise than by `close`.

        Raises:
            UsageError: paho-mqtt is not installed.
            ConfigError: The certificate cannot be used.
        """
        self._address = address
        self._login = login
        self._loop = loop
        self._receive = receive
        self._writable = writable
        self._lost = lost
        self._client = make_client(name)
        client = self._client
        client.connect_timeout = login.connect_timeout
        if login.username is not None:
            client.username_pw_set(login.username, login.password)
        context = login.context()
        if context is not None:
            client.tls_set_context(context)
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_message = self._on_message
        client.on_disconnect = self._on_disconnect
        client.on_socket_close = self._on_socket_close
        self._came: list[tuple[str, bytes]] = []
        #: The descriptor that the loop looks at.
        self._watched: int | None = None
        self._writing = False
        self._quick: Callable[[], object] = _nothing
        #: Whether it ended the connection, or TLS on it, before it said whether it lets this end in; whether it said so.
        self._hung_up = False
        self._has_answered = False
        self._up = False
        self._closed = False
        self._reason: str | None = None
        self._answer: asyncio.Future[str | None] | None = None
        self._misc: asyncio.TimerHandle | None = None

    @property
    def ready(self) -> bool:
        """Whether it takes a payload: all that it was given before is with the system."""
        return self._up and not self._writing

    async def connect(self, *, will: tuple[str, bytes, bool] | None = None) -> None:
        """Connect and be let in.

        Args:
            will: The topic and payload that the broker publishes if this connection ends without `close`, and whether it
                keeps that for those who come later.

        Raises:
            DialFailed: It is not there, does not let this user in, or took too long.
            TLSError: Its certificate is not to be trusted, or does not hold its name; or one of both does not encrypt.

        Cancelling gives up; call `close` then.
        """
        try:
            await self._enter(will)
        except (DialFailed, TLSError) as error:
            disagreement = await self._disagreement() if self._hung_up else None
            if disagreement is not None:
                raise disagreement from error
            raise

    async def _enter(self, will: tuple[str, bytes, bool] | None) -> None:
        client, login = self._client, self._login
        if will is not None:
            client.will_set(will[0], will[1], 0, will[2])
        work = self._loop.run_in_executor(None, self._connect)
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            self._closed = True
            work.add_done_callback(self._given_up)
            login.threads.add(work)
            work.add_done_callback(login.threads.discard)
            raise
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError) as error:
            self._hung_up = True
            raise DialFailed(self._address, "the MQTT broker hung up while TLS began") from error
        except ssl.SSLError as error:
            self._hung_up = not isinstance(error, ssl.SSLCertVerificationError)
            trusted = str(login.certificate or "the system's CAs")
            raise explained(error, self._address, name=self._address.host, trusted=trusted) from error
        except (OSError, ValueError) as error:
            self._hung_up = isinstance(error, (ConnectionResetError, BrokenPipeError))
            raise DialFailed(self._address, f"the MQTT broker: {in_words(error)}") from error
        sock = client.socket()
        if sock is None:
            self._hung_up = True
            raise DialFailed(self._address, self._reason or "the MQTT broker hung up")
        answer = self._answer = self._loop.create_future()
        if isinstance(sock, socket.socket):
            tune(sock)
            self._quick = _quick(sock)
        self._watched = sock.fileno()
        try:
            self._loop.add_reader(self._watched, self._read)
        except NotImplementedError as error:
            raise UsageError(
                "this event loop has no add_reader, which MQTT needs", "use asyncio.SelectorEventLoop"
            ) from error
        self._misc = self._loop.call_later(1.0, self._look)
        self._after_writing()
        try:
            async with asyncio.timeout(login.connect_timeout):
                refused = await answer
        except TimeoutError as error:
            raise DialFailed(self._address, f"the MQTT broker said nothing for {login.connect_timeout:g} s") from error
        if refused is None and client.socket() is None:
            # It ended before it was seen that this end was let in, so nobody was told.
            refused = self._reason or "the connection to the MQTT broker ended"
        if refused is not None:
            self._hung_up = not self._has_answered
            raise DialFailed(self._address, refused)
        self._up = True

    async def _disagreement(self) -> TLSError | None:
        """The broker hung up: whether one of both encrypts and the other does not."""
        encrypted = self._login.encrypted
        if not encrypted and await speaks_tls(self._address):
            hint = "give security=SecurityOptions(cert=…) with the CA of the broker, or None for those of the system"
            return TLSError("the MQTT broker wants TLS, and this end speaks plaintext to it", self._address, hint)
        if encrypted and await answers(self._address, _CONNECT, _CONNACK):
            hint = "leave security out, or dial the port at which the broker encrypts"
            return TLSError("the MQTT broker speaks no TLS", self._address, hint)
        return None

    def _connect(self) -> None:
        """In a thread: names are looked up and TLS agreed upon without the loop."""
        self._client.connect(self._address.host, self._address.port, KEEPALIVE)

    def _given_up(self, work: asyncio.Future[None]) -> None:
        if not work.cancelled():
            work.exception()
        self._drop()

    async def subscribe(self, *topics: str) -> None:
        """Read topics.

        Raises:
            DialFailed: The broker does not allow it, or is gone.
        """
        if not self._up:
            raise DialFailed(self._address, self._reason or "the connection to the MQTT broker ended")
        answer = self._answer = self._loop.create_future()
        self._client.subscribe([(topic, 0) for topic in topics])
        self._after_writing()
        refused = await answer
        if refused is not None:
            raise DialFailed(self._address, refused)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Publish; what is given while it is not `ready` waits in memory."""
        if self._up:
            self._client.publish(topic, payload, 0, retain)
            self._after_writing()

    def close(self) -> None:
        """Say goodbye if the broker takes it at once, and close; what was published before is with the system."""
        if self._closed:
            return
        self._closed = True
        if self._up:
            self._up = False
            self._client.disconnect()
        self._drop()

    def _drop(self) -> None:
        """Close the socket whatever waits."""
        self._up = False
        if self._misc is not None:
            self._misc.cancel()
        sock = self._client.socket()
        self._unwatch()
        if sock is not None:
            sock.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result("it was given up")

    # paho's callbacks, some of which come in the thread that connects

    def _on_connect(self, _client: Client, _data: object, _flags: object, code: Any, _properties: object) -> None:
        self._has_answered = True
        self._answered(f"the MQTT broker does not let this user in: {code}" if code.is_failure else None)

    def _on_subscribe(self, _client: Client, _data: object, _mid: int, codes: list[Any], _properties: object) -> None:
        refused = any(code.is_failure for code in codes)
        self._answered("the MQTT broker does not let this user read the topics" if refused else None)

    def _on_message(self, _client: Client, _data: object, message: Any) -> None:
        with contextlib.suppress(UnicodeDecodeError):
            self._came.append((message.topic, message.payload))

    def _on_disconnect(self, _client: Client, _data: object, _flags: object, code: object, _props: object) -> None:
        self._reason = f"the connection to the MQTT broker ended: {code}"

    def _on_socket_close(self, _client: Client, _data: object, _sock: object) -> None:
        self._unwatch()
        if self._up or (self._answer is not None and not self._answer.done()):
            self._loop.call_soon(self._gone)

    def _answered(self, refused: str | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(refused)

    # The loop

    def _unwatch(self) -> None:
        if self._watched is not None:
            self._loop.remove_reader(self._watched)
            if self._writing:
                self._loop.remove_writer(self._watched)
            self._watched = None
        self._writing = False

    def _gone(self) -> None:
        if self._closed:
            return
        self._closed = True
        was_up = self._up
        reason = self._reason or "the connection to the MQTT broker ended"
        self._answered(reason)
        self._drop()
        if was_up:
            self._lost(reason)

    def _read(self) -> None:
        client = self._client
        # The system forgets it.
        self._quick()
        for _ in range(_READS):
            client.loop_read()
            came = self._came
            if came:
                self._came = []
                for topic, payload in came:
                    self._receive(topic, payload)
            sock = client.socket()
            if sock is None or self._watched is None:
                break
            if not came and not (isinstance(sock, ssl.SSLSocket) and sock.pending()):
                break
        self._after_writing()

    def _write(self) -> None:
        self._client.loop_write()
        self._after_writing()
        if self.ready:
            self._writable()

    def _after_writing(self) -> None:
        """Paho writes what it is given as far as the system takes it; the loop says when it takes more."""
        if self._watched is None:
            return
        waits = self._client.want_write()
        if waits != self._writing:
            self._writing = waits
            if waits:
                self._loop.add_writer(self._watched, self._write)
            else:
                self._loop.remove_writer(self._watched)

    def _look(self) -> None:
        """Once a second: keep the connection alive, and find out that it is not."""
        self._misc = self._loop.call_later(1.0, self._look)
        self._client.loop_misc()
        self._after_writing()


def _quick(sock: socket.socket) -> Callable[[], object]:
    """What makes the system confirm at once what it received, until it decides otherwise.

    Brokers let a small payload wait until what they sent before is confirmed, as long as TCP_NODELAY is not set there, and
    a system has 40 ms to do that.
    """
    option = getattr(socket, "TCP_QUICKACK", None)
    if option is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return _nothing
    return partial(sock.setsockopt, socket.IPPROTO_TCP, option, 1)


def _nothing() -> None:
    pass
