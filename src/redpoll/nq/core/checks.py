"""Checks of the options of communicators, and the hints of their errors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from redpoll.address import Address
from redpoll.checks import Check
from redpoll.errors import ConfigError, UsageError

__all__ = ["check_all", "function", "host", "identity", "instance", "path", "prefix", "secret", "text"]

#: Hints by the name of the option.
_HINTS: Final[Mapping[str, str]] = {
    "id": "uuid.uuid4() for a new one, uuid.UUID(text) for one that was written down",
    "port": "int(text) for what was read from somewhere",
    "netloc": "NetworkLocation(host, port)",
    "connection": "ConnectionOptions(queue_size=1000)",
    "serialization": "SerializationOptions(load=serializer.load, dump=serializer.dump)",
    "security": 'SecurityOptions(key=Path("key.pem"), cert=Path("cert.pem"))',
    "drop_oldest": "net-queue 2.4 had transport_size in this place: give that by its name",
    "events": "EventOptions(ini=function, fin=function); net-queue 2.4 had workers in this place: give that by its name",
    "secret": "secrets.token_bytes(16)",
    "load": "the method itself, not what it returns",
    "dump": "the method itself, not what it returns",
}


def check_all(values: Mapping[str, Any], checks: Mapping[str, Check], *, shown: bool = True) -> None:
    """Check each value that has a check.

    Args:
        values: The values by the names of their options.
        checks: The checks by the same names.
        shown: Whether the error may show the value; else it has its type.

    Raises:
        ConfigError: A value is wrong.
    """
    for name, check in checks.items():
        value = values[name]
        problem = check(value)
        if problem is not None:
            raise ConfigError(name, value if shown else type(value), problem, _HINTS.get(name))


def host(value: Any) -> str | None:
    """Check an IP address or a name."""
    if not isinstance(value, str):
        return f"must be text, not {type(value).__name__}"
    try:
        Address.of_host(value)
    except UsageError as error:
        return str(error)
    return "must be an IP address or a name" if value.startswith(("unix:", "inproc:")) else None


def function(value: Any) -> str | None:
    """Check a function."""
    return None if callable(value) else f"must be a function, not {type(value).__name__}"


def instance(kind: type) -> Check:
    """Return a check for instances of a class."""
    article = "an" if kind.__name__[0] in "AEIO" else "a"
    return lambda value: (
        None if isinstance(value, kind) else f"must be {article} {kind.__name__}, not {type(value).__name__}"
    )


def identity(value: Any) -> str | None:
    """Check an id."""
    if not isinstance(value, UUID):
        return f"must be a uuid.UUID, not {type(value).__name__}"
    return None if value.int else "must not be the nil UUID"


def path(name: str, value: Any) -> Path | None:
    """Return a value as a path, or None.

    Raises:
        ConfigError: It is none.
    """
    if value is None or isinstance(value, Path):
        return value
    if not isinstance(value, str | os.PathLike) or not value:
        raise ConfigError(name, value, f"must be a path, not {type(value).__name__}", f'{name}=Path("{name}.pem")')
    return Path(value)


def prefix(value: Any) -> str | None:
    """Check the prefix of MQTT topics."""
    if not isinstance(value, str):
        return f"must be text, not {type(value).__name__}"
    if not 0 < len(value) <= 200:
        return "must have 1 to 200 characters"
    if not value.isprintable() or any(c in value for c in "+#") or "" in value.split("/") or value[0] == "$":
        return 'must be the levels of a topic: no "+", no "#", no empty level, and no "$" in front'
    return None


def text(value: Any) -> str | None:
    """Check a non-empty text."""
    return None if isinstance(value, str) and value else "must be text, and not empty"


def secret(value: Any) -> str | None:
    """Check a secret of 16 bytes."""
    if not isinstance(value, bytes):
        return f"must be bytes, not {type(value).__name__}"
    return None if len(value) == 16 else f"must be 16 bytes, not {len(value)}"
