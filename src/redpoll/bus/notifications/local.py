"""A notifier that writes to a log, with secrets masked."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from redpoll.bus.notifications.notifier import Priorities
from redpoll.bus.notifications.records import Priority, check_priority

__all__ = ["LogNotifier", "masked"]

_LEVELS: Final[Mapping[Priority, int]] = MappingProxyType(
    {
        "debug": logging.DEBUG,
        "audit": logging.INFO,
        "info": logging.INFO,
        "sample": logging.INFO,
        "warn": logging.WARNING,
        "error": logging.ERROR,
        "critical": logging.CRITICAL,
    }
)

_MASK: Final = "***"
#: A key with one of these in it names a secret.
_SECRETS: Final = (
    "password|passwd|passphrase|pswd|adminpass|admin_pass|secret|token|credential|cookie|authorization|api[-_]?key"
)
_KEY: Final = re.compile(_SECRETS, re.IGNORECASE)
#: password=x, "token": "x", https://user:x@host.
_PAIR: Final = re.compile(rf"""((?:{_SECRETS})[\w-]*["']?\s*[=:]\s*)("[^"]*"|'[^']*'|[^\s,;&"']+)""", re.IGNORECASE)
_USER: Final = re.compile(r"(://[^/\s:@]*:)[^/\s@]+(?=@)")
#: Values that lie deeper are left out.
_DEPTH: Final = 20


def masked(value: Any, depth: int = _DEPTH) -> Any:
    """Return a copy of a value for a log: passwords, tokens and secrets, by their keys, are ``***``, in texts as well.

    Args:
        value: The value, of mappings and sequences.
        depth: Maximum nesting; deeper values are left out.
    """
    if isinstance(value, str):
        return _USER.sub(rf"\g<1>{_MASK}", _PAIR.sub(rf"\g<1>{_MASK}", value))
    if isinstance(value, Mapping | list | tuple | set | frozenset) and depth <= 0:
        return "..."
    if isinstance(value, Mapping):
        return {str(key): _MASK if _KEY.search(str(key)) else masked(each, depth - 1) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [masked(each, depth - 1) for each in value]
    return value


class LogNotifier(Priorities):
    """Writes notifications to a log, as JSON and at the level of their priority; secrets are masked.

    Headers are not written. With a `RoutingNotifier` it stands beside notifiers that send, or in their place.

    Args:
        publisher: The publisher.
        logger: The log. A `NotificationHandler` does not send records of the default one.
    """

    def __init__(self, publisher: str, logger: logging.Logger | None = None) -> None:
        self.publisher = publisher
        self._log = logging.getLogger("redpoll.notifications") if logger is None else logger

    def __repr__(self) -> str:
        return f"<LogNotifier {self.publisher!r} to {self._log.name}>"

    async def notify(
        self,
        priority: Priority,
        event: str,
        payload: Any = None,
        *,
        headers: Mapping[str, Any] | None = None,  # noqa: ARG002  # they may identify a person
    ) -> None:
        """Write a notification.

        Raises:
            ConfigError: There is no such priority.
        """
        check_priority(priority)
        if self._log.isEnabledFor(_LEVELS[priority]):
            said = {"publisher": self.publisher, "event": event, "priority": priority, "payload": masked(payload)}
            self._log.log(_LEVELS[priority], "%s", json.dumps(said, default=lambda value: masked(repr(value))))
