"""URLs of engines, and the factories of their schemes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from redpoll.bus.engine import Engine
from redpoll.errors import ConfigError

__all__ = ["EngineMaker", "EngineURL", "find_engine"]

#: The engines that come with redpoll, by the scheme of their URLs, and what makes them.
_OWN: Final[Mapping[str, str]] = {
    "memory": "redpoll.bus.engines.memory:open_engine",
    "redpoll": "redpoll.bus.engines.hub.client:open_engine",
    "amqp": "redpoll.bus.engines.amqp:open_engine",
    "amqps": "redpoll.bus.engines.amqp:open_engine",
}
_GROUP: Final = "redpoll.engines"


@dataclass(frozen=True, slots=True)
class EngineURL:
    """The URL of an engine: ``scheme://user:password@host:port,host2:port2/path?option=value``.

    The user and the password may stand before each host too, always the same.
    """

    scheme: str
    """The name of the engine."""
    hosts: tuple[tuple[str, int | None], ...]
    """Hosts and ports, to be tried in turn; names of memory engines are hosts as well."""
    user: str | None = field(repr=False)
    """Percent-decoded, as all that follows; where it is a token, a secret."""
    password: str | None = field(repr=False)
    path: str
    """Without the slash that begins it."""
    options: tuple[tuple[str, str], ...] = field(repr=False)
    """The query."""

    @classmethod
    def parse(cls, text: str) -> EngineURL:
        """Read a URL.

        Raises:
            ConfigError: It is none, or a port is no number.
        """
        if not isinstance(text, str):
            raise ConfigError("url", "…", f"must be text, not {type(text).__name__}")
        if "://" not in text:
            # Nothing that may be a password.
            shown = f"…@{text.rpartition('@')[2]}" if "@" in text else text
            raise ConfigError("url", shown, "must be text like memory:// or redpoll://host:port")
        scheme, _, rest = text.partition("://")
        try:
            parts = urlsplit(f"//{rest}")
            places, at, rest = parts.netloc.rpartition("@")
            if "@" in places:
                # The user stands before each host, as oslo.messaging has it.
                each = [part.rpartition("@") for part in parts.netloc.split(",")]
                if len({who for who, _, _ in each}) > 1:
                    raise ValueError("its hosts have different users or passwords")  # noqa: TRY301
                places, rest = each[0][0], ",".join(host for _, _, host in each)
            user, _, password = places.partition(":")
            hosts = tuple(map(_host, filter(None, rest.split(","))))
            options = tuple(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
        except ValueError as error:
            # Not the URL itself: it may hold a password.
            raise ConfigError("url", f"{scheme}://…", str(error)) from error
        return cls(
            scheme.lower(),
            hosts,
            unquote(user) if at else None,
            unquote(password) if at and ":" in places else None,
            unquote(parts.path.removeprefix("/")),
            options,
        )

    def __str__(self) -> str:
        """The scheme and the hosts, for errors and logs: without ports, user, password and path."""
        hosts = ",".join(f"[{host}]" if ":" in host else host for host, _ in self.hosts)
        return f"{self.scheme}://{hosts}"


def _host(text: str) -> tuple[str, int | None]:
    parts = urlsplit(f"//{text}")
    return unquote(parts.hostname or ""), parts.port


EngineMaker = Callable[[EngineURL, Mapping[str, Any]], Engine]
"""Makes an engine, given its URL and the options of `connect`; what an entry point of the group ``redpoll.engines`` names."""


def find_engine(scheme: str) -> EngineMaker:
    """Return the factory of the engines of a scheme.

    Raises:
        ConfigError: There is none.
    """
    if scheme in _OWN:
        module, _, name = _OWN[scheme].partition(":")
        made: EngineMaker = getattr(import_module(module), name)
        return made
    others = entry_points(group=_GROUP)
    if scheme not in others.names:
        names = ", ".join(f"{name}://" for name in sorted({*_OWN, *others.names}))
        raise ConfigError("url", f"{scheme}://…", "there is no such engine", f"there are {names}")
    loaded: EngineMaker = others[scheme].load()
    return loaded
