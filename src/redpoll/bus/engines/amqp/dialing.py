"""The hosts of a URL: which one is tried next, when, and how."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from redpoll.address import Address
from redpoll.bus.engines.amqp.link import Broken, Link, Login, Owner, Rejected
from redpoll.bus.engines.amqp.seal import Seal
from redpoll.errors import RedpollError
from redpoll.tls.failures import explained

__all__ = ["Hosts", "open_link"]

#: Seconds that a host is left alone after it failed, while there are others.
_COOL: Final = 0.25
#: Seconds between two rounds over all hosts, at most, at first and in the end; between them it doubles.
_PAUSE: Final = 0.1
_LONGEST: Final = 5.0
#: Seconds at least after a host refused the login.
_REFUSED: Final = 1.0


class Hosts:
    """The order in which hosts are tried. The first retry is at once, on another host.

    Args:
        hosts: Hosts and ports.
        random: A number from 0 to 1, for the pauses.
    """

    def __init__(self, hosts: tuple[tuple[str, int], ...], random: Callable[[], float] = random.random) -> None:
        self._hosts = list(hosts)
        self._random = random
        self._failed: dict[tuple[str, int], float] = {}
        self._tries = 0

    @property
    def current(self) -> tuple[str, int]:
        """The host to be tried next, or in use."""
        return self._hosts[0]

    def succeeded(self) -> None:
        """Note that the host in use serves: pauses begin anew."""
        self._tries = 0
        self._failed.clear()

    def failed(self, now: float, *, refused: bool = False) -> float:
        """Note that the host in use failed, and turn to the next one.

        Args:
            now: Monotonic seconds.
            refused: True if it refused the login.

        Returns:
            Seconds to wait before it is tried.
        """
        host = self._hosts.pop(0)
        self._hosts.append(host)
        self._failed[host] = now
        self._tries += 1
        rounds, rest = divmod(self._tries, len(self._hosts))
        cool = 0.0
        if len(self._hosts) > 1:
            cool = max(0.0, self._failed.get(self._hosts[0], now - _COOL) + _COOL - now)
        pause = 0.0
        if rest == 0:
            # All of them failed: full jitter.
            pause = self._random() * min(_LONGEST, _PAUSE * 2 ** min(rounds, 10))
        return max(cool, pause, _REFUSED if refused else 0.0)


async def open_link(
    host: str, port: int, login: Login, owner: Owner, tls: ssl.SSLContext | None, timeout: float
) -> Link:
    """Connect to a host: its name is resolved anew, and is the name that its certificate must have.

    Args:
        host: Name or address.
        port: Port.
        login: Data of the handshake.
        owner: Is told of what happens to the link.
        tls: For an encrypted connection.
        timeout: Seconds for all of it.

    Raises:
        OSError: It was not reached, or did not answer in time.
        Rejected: It refused the login.
        ProtocolError: It does not speak AMQP 0-9-1.
        TLSError: Its certificate is not trusted, or not for that host; or it does not speak TLS.
    """
    loop = asyncio.get_running_loop()
    link = Link(login, owner, None if tls is None else Seal(tls, host))
    try:
        async with asyncio.timeout(timeout):
            transport, _ = await loop.create_connection(lambda: link, host, port)
            _set_options(transport, login.heartbeat)
            await link.opened
    except TimeoutError:
        error = Broken(f"it did not answer within {timeout:g} s")
        link.abort(error)
        raise error from None
    except ssl.SSLError as error:
        raise explained(
            error, Address("tcp", host, port), name=host, trusted="the file of ca=, or the system's"
        ) from error
    except BaseException as error:
        link.abort(error if isinstance(error, OSError | Rejected | RedpollError) else Broken("it was given up"))
        raise
    return link


def _set_options(transport: asyncio.Transport, heartbeat: int) -> None:
    """Have the system give up on bytes that are not acknowledged, where it can; asyncio sends small ones at once."""
    connected = transport.get_extra_info("socket")
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    if connected is not None and option is not None:
        with suppress(OSError):
            connected.setsockopt(socket.IPPROTO_TCP, option, heartbeat * 1_500)
