"""What both classes of the old module have: making exchanges and queues, binding them, closing."""

from __future__ import annotations

import warnings
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, Unpack

from redpoll.address import Address
from redpoll.checks import seconds
from redpoll.config import Config
from redpoll.errors import ConfigError, UsageError
from redpoll.wiring.wiring import Wiring
from redpoll.wiring.zmq.constants import (
    NO_SWAP,
    SCOPE_LOCAL,
    STYLE_DATA_DISTRIBUTION,
    check_swap,
    limits_of,
    scope_of,
    style_of,
)
from redpoll.wiring.zmq.house import House
from redpoll.wiring.zmq.interfaces import ANYWHERE, NOWHERE, Place, directory_at, place_of
from redpoll.wiring.zmq.keywords import UNSET, Names

if TYPE_CHECKING:
    from redpoll.tls import TLS

__all__ = ["Wires"]


class _Host(TypedDict, total=False):
    host: str | Address | None


class _ExchangeNames(TypedDict, total=False):
    exchange_name: str
    location: str | None


class _NoNames(TypedDict):
    pass


class _QueueNames(TypedDict, total=False):
    queue_name: str
    location: str | None


_CREATE_EXCHANGE = Names(
    "create_exchange", "name", "scope", "interface", "style", exchange_name="name", location="interface"
)
_CREATE_QUEUE = Names(
    "create_queue", "name", "scope", "interface", "hwm", "lwm", "swap", queue_name="name", location="interface"
)
_BIND = Names("bind", "exchange", "queue", "exchange_options", "queue_options", "wait")
_OPTIONS = ("hostname", "interface", "advertise", "tls", "encryption", "token", "bind_timeout", "config")


class Wires:
    """What both classes of the old module have: exchanges and queues, wired by name, for plain threads.

    Both take the keywords of either generation. A keyword of neither is a `TypeError` that names the right one.

    Every method may be called from any thread; any number of threads may send and receive at the same time.

    Args:
        hostname: Where the directory is, "host" or "host:port" (default port 5682); None (default) is no directory, for names
            that this process alone can see. Also `host`.
        interface: Where this process can be reached, if no exchange or queue says it; see `create_exchange`.
        advertise: The address that others are told, if it is not the one that this listens at.
        tls: Certificates; see `Config.tls`.
        encryption: As `Config.encryption`: "auto" (default) is TLS off loopback.
        token: What the directory asks for, and objects of one another over the network, if they do.
        bind_timeout: Seconds that `bind` waits for a name (default 5).
        config: Options of the node below.
        **other: `host`, which is `hostname` by its later name.

    Nothing is opened before it is needed: the first global name says where this listens, or the first `bind`. An object that
    is dropped is closed, with a `ResourceWarning`, and so are all when the program ends.
    """

    _style = STYLE_DATA_DISTRIBUTION
    _gaps = False

    def __init__(
        self,
        hostname: str | Address | None = None,
        *,
        interface: str | None = None,
        advertise: str | None = None,
        tls: TLS | None = None,
        encryption: bool | Literal["auto"] = "auto",
        token: str | bytes | None = None,
        bind_timeout: float = 5.0,
        config: Config | None = None,
        **other: Unpack[_Host],
    ) -> None:
        label = type(self).__name__
        (hostname,) = Names(label, *_OPTIONS, host="hostname").read(other, hostname=hostname)
        problem = seconds(bind_timeout)
        if problem is not None:
            raise ConfigError("bind_timeout", bind_timeout, problem)
        directory = directory_at(hostname)
        place = place_of(interface)
        options: dict[str, Any] = {
            "advertise": advertise,
            "tls": tls,
            "encryption": encryption,
            "token": token,
            "bind_timeout": bind_timeout,
            "config": config,
        }

        def make(given: Place) -> Wiring:
            host, port = given if given != NOWHERE else place
            if host is None:
                near = directory is None or directory.is_loopback or directory.host == "localhost"
                host = "127.0.0.1" if near else ANYWHERE
            return Wiring(directory, host=host, port=port, **options)

        self._house = House(make, f"{label} object", self._gaps)
        self._house.watch(self)
        self._outboxes = self._house.outboxes
        self._pop = self._house.inbox.pop

    # Wiring

    def create_exchange(
        self,
        name: str = UNSET,
        scope: int = SCOPE_LOCAL,
        interface: str | None = None,
        style: int = UNSET,
        **other: Unpack[_ExchangeNames],
    ) -> int:
        """Make an exchange, which this object sends to.

        Args:
            name: 1 to 255 bytes in UTF-8.
            scope: Who can see the name: `SCOPE_LOCAL` (default), `SCOPE_PROCESS` or `SCOPE_GLOBAL`.
            interface: Where this object can be reached: "10.0.0.1", "eth0", ":5555", "10.0.0.1:5555"; "*" is every address.
                None or "" is loopback if the directory is there, and every address if it is elsewhere; any free port if none
                is said. "zmq.tcp://" may stand before it. An object listens at one place.
            style: `STYLE_DATA_DISTRIBUTION`, which is the default of `ZMQ`, or `STYLE_LOAD_BALANCING`, that of `Zmq`.
            **other: `exchange_name` for `name`, `location` for `interface`.

        Returns:
            Its number, from 0, for `send`; the same as before if it is made again.

        Raises:
            NameTaken: There is one of that name: of another owner, or of this object and made otherwise.
            DirectoryUnavailable: A global name cannot be registered.
            UsageError: An argument is none of these.
            ConfigError: It cannot listen there; off loopback it wants `tls`, or ``encryption=False``.
        """
        name, interface = _CREATE_EXCHANGE.read(other, name=name, interface=interface)
        chosen = style_of(self._style if style is UNSET else style)
        options = {"scope": scope_of(scope), "style": chosen}
        return self._house.create("exchange", name, place_of(interface), options)

    def create_queue(
        self,
        name: str = UNSET,
        scope: int = SCOPE_LOCAL,
        interface: str | None = None,
        hwm: int | None = None,
        lwm: int | None = None,
        swap: int = NO_SWAP,
        **other: Unpack[_QueueNames],
    ) -> int:
        """Make a queue, from which this object receives.

        Args:
            name: As for `create_exchange`.
            scope: As for `create_exchange`.
            interface: As for `create_exchange`.
            hwm: Messages that each pipe may have here before its sender is stopped; None (default) is 10,000, `NO_LIMIT` is
                none, also in bytes, of which there are 64 MiB otherwise.
            lwm: Messages at which it goes on; None (default) is half of that.
            swap: `NO_SWAP`.
            **other: `queue_name` for `name`, `location` for `interface`.

        Returns:
            Its number, from 1; the same as before if it is made again.

        Raises:
            NameTaken: As for `create_exchange`; also `DirectoryUnavailable`, `UsageError` and `ConfigError`.
        """
        name, interface = _CREATE_QUEUE.read(other, name=name, interface=interface)
        check_swap(swap)
        options = {"scope": scope_of(scope), "limits": limits_of(hwm, lwm)}
        return self._house.create("queue", name, place_of(interface), options)

    def bind(
        self,
        exchange: str = UNSET,
        queue: str = UNSET,
        exchange_options: None = None,
        queue_options: None = None,
        *,
        wait: float | None = UNSET,
        **other: Unpack[_NoNames],
    ) -> None:
        """Have a queue get what an exchange is sent; what is sent after this arrives.

        Args:
            exchange: The name of an exchange: of this object, this process, or the directory.
            queue: The name of a queue, likewise.
            exchange_options: None: there are no transports here that would have any.
            queue_options: None.
            wait: Seconds to wait for a name that is not there yet; unset is `bind_timeout`, None no limit. 0 fails as soon as
                that is known, for which a directory that does not answer, or was started just now, has `bind_timeout`.
            **other: None; what is given is told the name that it has here.

        Binding what is bound does nothing. Ctrl-C ends the waiting.

        Raises:
            UnknownName: Nobody has it.
            DirectoryUnavailable: Nobody can be asked.
            UsageError: An argument is none of these.
        """
        exchange, queue = _BIND.read(other, exchange=exchange, queue=queue)
        for key, value in (("exchange_options", exchange_options), ("queue_options", queue_options)):
            if value is not None:
                raise UsageError(f"bind() has no {key} here, so {value!r} cannot be kept to", "leave them out")
        self._house.bind(exchange, queue, {} if wait is UNSET else {"wait": wait})

    # Life

    def close(self, linger: float = 5.0) -> None:
        """Send nothing more, and close.

        Args:
            linger: Seconds that what was sent has to leave (default 5).

        Whoever waits in another thread is told by `Closed`. Closing what is closed does nothing, nor does closing the
        parent's in a child of the process.

        Raises:
            UsageError: `linger` is no time.
        """
        if linger != 0:
            problem = seconds(linger)
            if problem is not None:
                raise ConfigError("linger", linger, problem)
        self._house.close(linger)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(0 if error is not None else 5.0)

    def __del__(self) -> None:
        # The warning alone, as Ctrl-C may keep it from coming here.
        house = getattr(self, "_house", None)
        if house is not None and house.is_open:
            warnings.warn(f"{self!r} was dropped without being closed", ResourceWarning, stacklevel=2)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"
