"""The base of both classes of the old module: creates exchanges and queues, binds them, closes."""

from __future__ import annotations

import warnings
from functools import partial
from types import TracebackType
from typing import Literal, Self

from redpoll.address import Address
from redpoll.checks import duration, require, seconds
from redpoll.config import Config
from redpoll.errors import UsageError
from redpoll.tls import TLS
from redpoll.wiring.wiring import Wiring
from redpoll.wiring.zmq.constants import (
    NO_SWAP,
    SCOPE_LOCAL,
    STYLE_DATA_DISTRIBUTION,
    UNSET,
    check_swap,
    either,
    limits_of,
    scope_of,
    style_of,
)
from redpoll.wiring.zmq.interfaces import ANYWHERE, NOWHERE, Place, directory_at, place_of
from redpoll.wiring.zmq.resident import WiringResident

__all__ = ["Wires"]


class Wires:
    """Base of both classes of the old module: exchanges and queues, bound by name, for plain threads.

    Both accept the keywords of both generations.

    Every method may be called from any thread; any number of threads may send and receive at the same time.

    Args:
        hostname: The address of the directory, "host" or "host:port" (default port 5682); None (default) for none: all names
            are then visible in this process only. Also `host`.
        interface: The address to listen at, unless an exchange or queue gives one; see `create_exchange`.
        advertise: The address at which others reach this process, if it differs from the one listened at.
        tls: Certificates; see `Config.tls`.
        encryption: As `Config.encryption`: "auto" (default) is TLS off loopback.
        token: The secret that the directory requires, and that objects require of each other over the network; None for none.
        bind_timeout: Seconds that `bind` waits for a name (default 5).
        config: Options of the node below.
        host: `hostname` by its later name.

    It starts to listen when that is needed: with the first name of a wider scope than LOCAL, or the first `bind`. A dropped
    object is closed, with a `ResourceWarning`; at the end of the program all are closed.
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
        host: str | Address | None = UNSET,
    ) -> None:
        hostname = either("hostname", hostname, "host", host)
        require("bind_timeout", bind_timeout, seconds)
        directory = directory_at(hostname)
        place = place_of(interface)
        wire = partial(
            Wiring, directory, advertise=advertise, tls=tls, encryption=encryption, token=token, config=config
        )

        def make(given: Place) -> Wiring:
            host, port = given if given != NOWHERE else place
            if host is None:
                near = directory is None or directory.is_loopback or directory.host == "localhost"
                host = "127.0.0.1" if near else ANYWHERE
            return wire(host=host, port=port, bind_timeout=bind_timeout)

        self._resident = WiringResident(make, f"{type(self).__name__} object", self._gaps)
        self._resident.watch(self)
        self._outboxes = self._resident.outboxes
        self._pop = self._resident.inbox.pop

    # Wiring

    def create_exchange(
        self,
        name: str = UNSET,
        scope: int = SCOPE_LOCAL,
        interface: str | None = None,
        style: int = UNSET,
        *,
        exchange_name: str = UNSET,
        location: str | None = UNSET,
    ) -> int:
        """Create an exchange, to which this object sends.

        Args:
            name: 1 to 255 bytes in UTF-8.
            scope: The visibility of the name: `SCOPE_LOCAL` (default), `SCOPE_PROCESS` or `SCOPE_GLOBAL`.
            interface: The address to listen at: "10.0.0.1", "eth0", ":5555", "10.0.0.1:5555"; "*" is every address. None or
                "" is loopback if the directory is there or there is none, and every address otherwise; without a port, any
                free one. The prefix "zmq.tcp://" is allowed. An object listens at one address.
            style: `STYLE_DATA_DISTRIBUTION`, which is the default of `ZMQ`, or `STYLE_LOAD_BALANCING`, that of `Zmq`.
            exchange_name: `name`, in the first generation.
            location: `interface`, in the second one.

        Returns:
            Its number, from 0, for `send`; that of the existing one, if it was created before.

        Raises:
            NameTaken: Another owner has the name, or this object has it with other options.
            DirectoryUnavailable: A global name cannot be registered.
            UsageError: An argument is invalid.
            ConfigError: It cannot listen there; off loopback `tls`, or ``encryption=False``, is required.
        """
        options = {"scope": scope_of(scope), "style": style_of(self._style if style is UNSET else style)}
        place = place_of(either("interface", interface, "location", location))
        return self._resident.create("exchange", either("name", name, "exchange_name", exchange_name), place, options)

    def create_queue(
        self,
        name: str = UNSET,
        scope: int = SCOPE_LOCAL,
        interface: str | None = None,
        hwm: int | None = None,
        lwm: int | None = None,
        swap: int = NO_SWAP,
        *,
        queue_name: str = UNSET,
        location: str | None = UNSET,
    ) -> int:
        """Create a queue, from which this object receives.

        Args:
            name: As for `create_exchange`.
            scope: As for `create_exchange`.
            interface: As for `create_exchange`.
            hwm: Maximum messages of each pipe here, at which its sender waits; None (default) is 10,000, `NO_LIMIT` is no
                limit, also in bytes; otherwise that is 64 MiB.
            lwm: Number of messages at which the sender continues; None (default) is half of `hwm`.
            swap: `NO_SWAP`.
            queue_name: `name`, in the first generation.
            location: `interface`, in the second one.

        Returns:
            Its number, from 1; that of the existing one, if it was created before.

        Raises:
            NameTaken: As for `create_exchange`; also `DirectoryUnavailable`, `UsageError` and `ConfigError`.
        """
        check_swap(swap)
        options = {"scope": scope_of(scope), "limits": limits_of(hwm, lwm)}
        place = place_of(either("interface", interface, "location", location))
        return self._resident.create("queue", either("name", name, "queue_name", queue_name), place, options)

    def bind(
        self,
        exchange: str,
        queue: str,
        exchange_options: None = None,
        queue_options: None = None,
        *,
        wait: float | None = UNSET,
    ) -> None:
        """Bind an exchange to a queue: messages sent after this call arrive.

        Args:
            exchange: The name of an exchange: of this object, this process, or the directory.
            queue: The name of a queue, likewise.
            exchange_options: None: the transport has no options.
            queue_options: None.
            wait: Seconds for names to appear; unset is `bind_timeout`, None is no limit, 0 looks them up once. A lookup may
                take `bind_timeout`, if the directory does not answer, or has just started.

        A second call for the same names does nothing. Ctrl-C ends the wait.

        Raises:
            UnknownName: The name has no owner.
            DirectoryUnavailable: The directory does not answer.
            UsageError: An argument is invalid.
        """
        for key, value in (("exchange_options", exchange_options), ("queue_options", queue_options)):
            if value is not None:
                raise UsageError(f"bind() has no {key} here, so {value!r} cannot be kept to", "leave them out")
        self._resident.bind(exchange, queue, {} if wait is UNSET else {"wait": wait})

    # Close

    def close(self, linger: float = 5.0) -> None:
        """Send waiting messages, accept no more, and close.

        Args:
            linger: Seconds for sent messages to leave (default 5).

        Waiting calls of other threads raise `Closed`. A second call does nothing, nor does a call in a forked child.

        Raises:
            ConfigError: `linger` is invalid.
        """
        require("linger", linger, duration)
        self._resident.close(linger)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(0 if error is not None else 5.0)

    def __del__(self) -> None:
        # The warning alone, as Ctrl-C may keep the rest from running.
        resident = getattr(self, "_resident", None)
        if resident is not None and resident.is_open:
            warnings.warn(f"{self!r} was dropped without being closed", ResourceWarning, stacklevel=2)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"
