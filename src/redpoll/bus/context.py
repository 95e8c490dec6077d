"""The context of a handler: its message, and the headers that travel along with the messages that it sends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from redpoll.bus.engine import Delivery
from redpoll.bus.envelope import check_carried
from redpoll.errors import ConfigError

__all__ = ["CURRENT", "NO_HEADERS", "OUTSIDE", "Context", "check_headers", "current_context", "inherit", "use_headers"]

NO_HEADERS: Final[Mapping[str, Any]] = MappingProxyType({})


class Context(NamedTuple):
    """The context of a handler.

    Attributes:
        headers: The headers that came with its message; messages that the handler sends carry them too.
        delivery: The call or task, for patterns; None for a message without an answer, and outside of a handler.
    """

    headers: Mapping[str, Any] = NO_HEADERS
    delivery: Delivery | None = None

    @property
    def left(self) -> float | None:
        """Seconds until its deadline, below 0 when it has passed; None if it has none."""
        return None if self.delivery is None else self.delivery.left

    @property
    def cancelled(self) -> bool:
        """True if the work is not wanted any more; for handlers in threads, which cannot be stopped."""
        return self.delivery is not None and (self.delivery.cancelled or self.delivery.lost)


OUTSIDE: Final = Context()
"""The context outside of handlers."""

CURRENT: Final[ContextVar[Context]] = ContextVar("redpoll.bus", default=OUTSIDE)
"""The context of the running handler; set by the patterns."""


def current_context() -> Context:
    """Return the headers, deadline and state of the running handler's message; empty outside of one.

    Handlers in threads have it as well.
    """
    return CURRENT.get()


@contextmanager
def use_headers(**headers: Any) -> Iterator[None]:
    """Add headers to the calls, casts and tasks that are sent within a block.

    ``with use_headers(user="ada"): await calculator.add(a=1, b=2)``. They reach the handler (`current_context`), and travel
    along with what that sends. Notifications carry those alone that `NotificationOptions.headers` names, broadcasts those
    alone that they are given: anybody may listen. Values are what MessagePack carries.

    Raises:
        ConfigError: A value is not.
    """
    check_headers(headers)
    context = CURRENT.get()
    token = CURRENT.set(Context({**context.headers, **headers}, context.delivery))
    try:
        yield
    finally:
        CURRENT.reset(token)


def check_headers(headers: object) -> None:
    """Check headers that a program gave.

    Raises:
        ConfigError: They are no mapping, or cannot be sent.
    """
    if headers is None:
        return
    if not isinstance(headers, Mapping):
        raise ConfigError("headers", headers, f"must be a mapping, not {type(headers).__name__}")
    check_carried("headers", dict(headers))


def inherit(headers: Mapping[str, Any] | None, timeout: float | None) -> tuple[Mapping[str, Any] | None, float | None]:
    """Return headers and timeout of a message, with those of the running handler, and within its deadline."""
    context = CURRENT.get()
    if context is OUTSIDE:
        return headers, timeout
    if context.headers:
        headers = {**context.headers, **headers} if headers else context.headers
    left = context.left
    if left is not None and (timeout is None or left < timeout):
        timeout = max(0.0, left)
    return headers, timeout
