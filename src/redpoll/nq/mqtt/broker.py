"""One connection to an MQTT broker, by paho-mqtt, on the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from redpoll.address import Address
from redpoll.errors import ConfigError, DialFailed, TLSError, UsageError
from redpoll.nq.core.probing import answers, speaks_tls
from redpoll.tls.failures import explained
from redpoll.transport.dial import in_words, tune

if TYPE_CHECKING:
    from paho.mqtt.client import Client

    from redpoll.nq.core.options import SecurityOptions

__all__ = ["CONNECT_TIMEOUT", "ENDING", "KEEPALIVE", "Broker", "Login", "make_client"]

#: Seconds without a byte after which this end pings the broker; after as many without an answer the connection counts
#: as lost. The broker drops a silent client after one and a half of them.
KEEPALIVE = 5

#: Seconds that connecting, and TLS, may take.
CONNECT_TIMEOUT = 5.0

#: Seconds that an abandoned attempt to connect may take to end, and a broker to read the rest of a closed connection.
ENDING = 1.0

#: Payloads read before other callbacks of the loop run.
_READS = 16

#: A CONNECT without a client id, and the first byte of every answer to it.
_CONNECT = bytes((0x10, 12, 0, 4)) + b"MQTT" + bytes((4, 2, 0, KEEPALIVE, 0, 0))
_CONNACK = b"\x20"


@dataclass(frozen=True)
class Login:
    """Parameters of a connection to a broker.

    Attributes:
        security: Use TLS, with the file of the CA that signed the broker's certificate, or else the CAs that the system
            trusts; None: no TLS.
        username: None: anonymous.
        password: The user's password.
        ending: Abandoned attempts to connect that still run, and closed connections that the broker has not read to the
            end; each closes its socket and ends.
    """

    security: SecurityOptions | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ending: set[asyncio.Future[None]] = field(default_factory=set, repr=False, compare=False)

    def context(self) -> ssl.SSLContext | None:
        """Return the context that checks the broker's certificate and its name; None without TLS.

        Raises:
            ConfigError: The file cannot be used.
        """
        if self.security is None:
            return None
        try:
            context = ssl.create_default_context(cafile=self.security.cert)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError("certificate", str(self.security.cert), f"cannot be used: {error}") from error
        context.sslsocket_class = _Socket
        return context


class _Socket(ssl.SSLSocket):
    """A TLS socket that closes itself if the handshake fails: paho would leave it open."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except BaseException:
            self.close()
            raise


class Broker:
    """One MQTT session, clean, with QoS 0 only.

    The ends acknowledge messages and number payloads; with QoS 1 the broker would store and confirm each payload once
    more, which costs most of the throughput.

    paho's callbacks only record; the consequences are carried out after paho has returned.
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
        """Make a closed connection; `connect` opens it.

        Args:
            address: The broker's address.
            login: Parameters of the connection.
            loop: The event loop that runs all of this.
            name: MQTT client id, unique at the broker.
            receive: Called with the topic and the payload of each message.
            writable: Called when the broker takes payloads again.
            lost: Called once with the reason if the connection ends otherwise than by `close`.

        Raises:
            UsageError: paho-mqtt is not installed.
            DialFailed: The file of the CA cannot be read now.
        """
        self._address = address
        self._login = login
        self._loop = loop
        self._receive = receive
        self._writable = writable
        self._lost = lost
        self._client = make_client(name)
        client = self._client
        client.connect_timeout = CONNECT_TIMEOUT
        if login.username is not None:
            client.username_pw_set(login.username, login.password)
        try:
            context = login.context()
        except ConfigError as error:
            # It could be read before: it is being replaced, or its file system is away.
            raise DialFailed(address, f"the MQTT broker: {error}") from error
        if context is not None:
            client.tls_set_context(context)
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_message = self._on_message
        client.on_disconnect = self._on_disconnect
        client.on_socket_close = self._on_socket_close
        self._came: list[tuple[str, bytes]] = []
        #: File descriptor that the loop watches.
        self._watched: int | None = None
        self._writing = False
        self._quick: Callable[[], object] = _nothing
        #: True if the broker closed the connection, or TLS on it, before it answered CONNECT; True once it answered.
        self._hung_up = False
        self._has_answered = False
        self._up = False
        self._closed = False
        self._reason: str | None = None
        self._answer: asyncio.Future[str | None] | None = None
        self._misc: asyncio.TimerHandle | None = None

    @property
    def ready(self) -> bool:
        """True if the broker takes a payload at once: all earlier ones are with the system."""
        return self._up and not self._writing

    async def connect(self, *, will: tuple[str, bytes, bool] | None = None) -> None:
        """Connect and log in.

        Args:
            will: The topic and payload that the broker publishes if this connection ends without `close`, and whether
                it keeps the payload for later subscribers.

        Raises:
            DialFailed: The broker cannot be reached, refuses this user, or took too long.
            TLSError: The broker's certificate is not trusted, or lacks its name; or only one end encrypts.

        Cancelling abandons the attempt; call `close` then.
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
            login.ending.add(work)
            work.add_done_callback(login.ending.discard)
            raise
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError) as error:
            self._hung_up = True
            raise DialFailed(self._address, "the MQTT broker hung up while TLS began") from error
        except ssl.SSLError as error:
            self._hung_up = not isinstance(error, ssl.SSLCertVerificationError)
            trusted = str((login.security and login.security.cert) or "the system's CAs")
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
            async with asyncio.timeout(CONNECT_TIMEOUT):
                refused = await answer
        except TimeoutError as error:
            raise DialFailed(self._address, f"the MQTT broker said nothing for {CONNECT_TIMEOUT:g} s") from error
        if refused is None and client.socket() is None:
            # The connection ended before `_up` was set, so that `_lost` was not called.
            refused = self._reason or "the connection to the MQTT broker ended"
        if refused is not None:
            self._hung_up = not self._has_answered
            raise DialFailed(self._address, refused)
        self._up = True

    async def _disagreement(self) -> TLSError | None:
        """Find out whether the broker hung up because only one end encrypts."""
        encrypted = self._login.security is not None
        if not encrypted and await speaks_tls(self._address):
            hint = "give security=SecurityOptions(cert=…) with the CA of the broker, or None for those of the system"
            return TLSError("the MQTT broker wants TLS, and this end speaks plaintext to it", self._address, hint)
        if encrypted and await answers(self._address, _CONNECT, _CONNACK):
            hint = "leave security out, or dial the port at which the broker encrypts"
            return TLSError("the MQTT broker speaks no TLS", self._address, hint)
        return None

    def _connect(self) -> None:
        """Connect, in a thread: looking up names and the TLS handshake would block the loop."""
        self._client.connect(self._address.host, self._address.port, KEEPALIVE)

    def _given_up(self, work: asyncio.Future[None]) -> None:
        if not work.cancelled():
            work.exception()
        self._drop()

    async def subscribe(self, *topics: str) -> None:
        """Subscribe to topics.

        Raises:
            DialFailed: The broker refuses it, or the connection is lost.
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
        """Publish; a payload given while this is not `ready` waits in memory."""
        if self._up:
            self._client.publish(topic, payload, 0, retain)
            self._after_writing()

    def close(self) -> None:
        """Disconnect and close; the broker reads the payloads published before, but those that waited in memory."""
        if self._closed:
            return
        self._closed = True
        sock = self._client.socket()
        if self._up and isinstance(sock, socket.socket):
            self._up = False
            # paho closes its socket with DISCONNECT. That resets the connection if anything is unread or still comes, and a
            # broker that cannot send drops what it has not read.
            rest = None
            with contextlib.suppress(OSError):  # the process has no descriptor left
                rest = socket.fromfd(sock.fileno(), sock.family, sock.type)
            self._client.disconnect()
            if rest is not None:
                self._read_to_the_end(rest)
        self._drop()

    def _read_to_the_end(self, sock: socket.socket) -> None:
        """Read until the broker has read all and closes the connection, for a limited time; close the socket."""
        loop, ending, watched = self._loop, self._login.ending, sock.fileno()
        ended = loop.create_future()
        ending.add(ended)

        def read() -> None:
            try:
                if sock.recv(1 << 16):
                    return
            except BlockingIOError:
                return
            except OSError:
                pass
            end()

        def end() -> None:
            limit.cancel()
            loop.remove_reader(watched)
            sock.close()
            ending.discard(ended)
            ended.set_result(None)

        sock.setblocking(False)
        with contextlib.suppress(OSError):  # the broker has closed it
            sock.shutdown(socket.SHUT_WR)
        loop.add_reader(watched, read)
        limit = loop.call_later(ENDING, end)

    def _drop(self) -> None:
        """Close the socket, also if data waits to be sent."""
        self._up = False
        if self._misc is not None:
            self._misc.cancel()
        sock = self._client.socket()
        self._unwatch()
        if sock is not None:
            sock.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result("the attempt was cancelled")

    # paho's callbacks, some of which come in the thread that connects

    def _on_connect(self, _client: Client, _data: object, _flags: object, code: Any, _properties: object) -> None:
        self._has_answered = True
        self._answered(f"the MQTT broker refuses this user: {code}" if code.is_failure else None)

    def _on_subscribe(self, _client: Client, _data: object, _mid: int, codes: list[Any], _properties: object) -> None:
        refused = any(code.is_failure for code in codes)
        self._answered("the MQTT broker refuses this user's subscriptions" if refused else None)

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
        # Set again: the system resets the option by itself.
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
        """Watch for writability if paho has data that the system did not take."""
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
        """Keep the connection alive, and detect that it is lost; called once a second."""
        self._misc = self._loop.call_later(1.0, self._look)
        self._client.loop_misc()
        self._after_writing()


def make_client(name: str = "") -> Client:
    """Return an unconnected client of paho.

    Args:
        name: Its MQTT client id.

    Raises:
        UsageError: paho-mqtt is not installed.
    """
    try:
        from paho.mqtt.client import Client
        from paho.mqtt.enums import CallbackAPIVersion
    except ImportError as error:
        raise UsageError("the protocol MQTT needs paho-mqtt", "pip install 'redpoll[mqtt]'") from error
    return Client(CallbackAPIVersion.VERSION2, client_id=name, clean_session=True)


def _quick(sock: socket.socket) -> Callable[[], object]:
    """Return a function that makes the system acknowledge at once what it received, until it changes that itself.

    A broker without TCP_NODELAY holds a small payload back until its earlier data is acknowledged, which the system
    may delay by 40 ms.
    """
    option = getattr(socket, "TCP_QUICKACK", None)
    if option is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return _nothing
    return partial(sock.setsockopt, socket.IPPROTO_TCP, option, 1)


def _nothing() -> None:
    pass
