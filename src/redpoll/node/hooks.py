"""The hooks of a node, called on the event loop as things happen."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from redpoll.address import Address
from redpoll.errors import RedpollError, UsageError

if TYPE_CHECKING:
    from redpoll.message import Message
    from redpoll.tls import Certificate

__all__ = ["NodeEvents", "PeerInfo", "log_raised"]

_logger = logging.getLogger("redpoll.node")


class PeerInfo(NamedTuple):
    """The state of a peer.

    Attributes:
        address: The address to dial. For a peer that does not listen: its host with port 0 over TCP, None over a unix
            socket or inside the process.
        identity: The node identity, 16 bytes; None before the first handshake.
        connected: Whether a link to the peer is up.
        redpoll: Whether the peer announced itself as a redpoll node; False for libchirp, or too early to know.
        certificate: The certificate of its last encrypted link; None if there was none, or it had none.
        resuming: Whether its last link was lost and its session continues: with `Config.resume` messages wait for the
            next.
    """

    address: Address | None
    identity: bytes | None
    connected: bool
    redpoll: bool
    certificate: Certificate | None = None
    resuming: bool = False


class NodeEvents:
    """The hooks of a node: assign a function to one, or several with `add`.

    Hooks are plain functions that must return soon. The event loop calls them, in order, right after the event: by then
    a handler may be running for a message of that peer. A hook may send, or begin to stop the node. An exception in a
    hook is logged and has no other effect: the first with its traceback, and then once a second the last one, with the number
    of those since. The hooks and their arguments:

    - `peer_connected(peer)`: the first link to a peer is up.
    - `peer_suspect(peer)`: a ping was not answered for `Config.keepalive` seconds.
    - `peer_lost(peer, error)`: the last link to a peer is lost, and why. Where `peer.resuming` is True its session goes
      on, and no send failed.
    - `identity_conflict(peer)`: a link claims the identity of a peer that another link holds, or that something is kept
      for, and did not prove that it is the same node; it becomes a peer of its own.
    - `handler_failed(message, error)`: a handler raised; the message was refused. The logger `redpoll.node` logs the
      first with its traceback, and then once a second the last one, with the number of messages since.
    - `send_failed(message, error)`: a send failed and nothing awaited its future. Without this hook the logger
      `redpoll.node` warns once a second, with the last error and the number of failures.
    """

    #: The names of all hooks; no other attribute can be assigned.
    NAMES = (
        "peer_connected",
        "peer_suspect",
        "peer_lost",
        "identity_conflict",
        "handler_failed",
        "send_failed",
    )
    __slots__ = (*NAMES, "_raised")

    peer_connected: Callable[[PeerInfo], object] | None
    peer_suspect: Callable[[PeerInfo], object] | None
    peer_lost: Callable[[PeerInfo, RedpollError], object] | None
    identity_conflict: Callable[[PeerInfo], object] | None
    handler_failed: Callable[[Any, BaseException], object] | None
    send_failed: Callable[[Message[Any], BaseException], object] | None

    def __init__(self) -> None:
        for name in self.NAMES:
            setattr(self, name, None)
        self._raised: Callable[[str, Exception], object] = _log_once

    def report_to(self, raised: Callable[[str, Exception], object]) -> None:
        """Call a function with the name of each hook that raises, and its exception, to log them."""
        self._raised = raised

    def add(self, name: str, hook: Callable[..., object]) -> None:
        """Call `hook` in addition to the present one.

        Raises:
            UsageError: There is no hook of that name.
        """
        if name not in self.NAMES:
            raise UsageError(f"unknown hook: {name!r}", f"the hooks are {', '.join(self.NAMES)}")
        first = getattr(self, name)
        if first is None:
            setattr(self, name, hook)
            return

        def both(*args: Any) -> None:
            self._call(name, first, args)
            self._call(name, hook, args)

        setattr(self, name, both)

    def tell(self, name: str, *args: Any) -> bool:
        """Schedule a call of a hook, which may not be called from within the node; return True if there is one."""
        hook = getattr(self, name)
        if hook is None:
            return False
        asyncio.get_running_loop().call_soon(self._call, name, hook, args)
        return True

    def _call(self, name: str, hook: Callable[..., object], args: tuple[Any, ...]) -> None:
        try:
            result = hook(*args)
        except Exception as error:  # noqa: BLE001  # whatever a hook raises
            self._raised(name, error)
        else:
            if inspect.iscoroutine(result):
                result.close()
                _logger.error("the hook %s is a coroutine function and is not awaited: use a plain function", name)


def log_raised(name: str, count: int, last: BaseException, logger: logging.Logger = _logger) -> None:
    """Log how often a hook raised, and the last exception."""
    logger.error("the hook %s raised%s", name, "" if count == 1 else f" {count:,} times, the last time", exc_info=last)


def _log_once(name: str, error: Exception) -> None:
    log_raised(name, 1, error)
