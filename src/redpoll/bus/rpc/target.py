"""Targets: the addressees of calls, and the versions that fit."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from redpoll.bus.records import QueueSpec, check_subject
from redpoll.errors import ConfigError, UsageError

__all__ = ["Target", "accepts", "check_version", "queue_name", "queue_spec", "subject_name"]

#: A queue of calls that nobody serves is deleted after so long.
_EXPIRES: Final = 60.0
_MAX_BYTES: Final = 64 * 2**20

_VERSION: Final = re.compile(r"(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Target:
    """The addressee of a call; of a server, its address. Where a target is expected, text is its topic.

    Calling one with keywords returns a copy with other fields: ``target(server="host-1")``.

    Raises:
        ConfigError: A field has a value that it cannot have.
    """

    topic: str | None = None
    """The identifier of the service; all servers of a topic share its calls."""

    server: str | None = None
    """Name of one server of the topic; None for any of them."""

    exchange: str | None = None
    """Scope of topics, so that two applications can use the same ones."""

    namespace: str | None = None
    """The namespace of the server's endpoints; None are those without one."""

    version: str | None = None
    """The version that a caller needs, or an endpoint offers: major.minor, or major.minor.revision. None is 1.0."""

    fanout: bool | None = None
    """All servers of the topic: for casts."""

    legacy_namespaces: tuple[str | None, ...] = ()
    """Other namespaces that an endpoint accepts; None is that of callers that name none."""

    def __post_init__(self) -> None:
        """Check every field."""
        for field in ("topic", "server", "exchange"):
            text = getattr(self, field)
            if text is not None:
                check_subject(field, text)
                if text[0] in "/@" or ":" in text or ".@" in text or (field == "exchange" and "/" in text):
                    raise ConfigError(field, text, "must not begin with / or @, nor contain : or .@")
        if self.version is not None:
            check_version("version", self.version)

    def __call__(self, **changes: Any) -> Target:
        """Return a copy with other fields; None is a value as well.

        Raises:
            UsageError: There is no such field.
        """
        try:
            return replace(self, **changes)
        except TypeError as error:
            raise UsageError(f"a target has no such field: {error}") from error

    @classmethod
    def of(cls, target: Target | str, server: str | None = None) -> Target:
        """Return a target, or that of a topic; with a server if one is given.

        Raises:
            ConfigError: It has no topic.
        """
        found = target if isinstance(target, Target) else cls(target)
        if found.topic is None:
            raise ConfigError("target", target, "must have a topic")
        return found if server is None else replace(found, server=server)

    @property
    def title(self) -> str:
        """Its name in errors and permissions: ``/exchange/topic.@server``."""
        scope = f"/{self.exchange}/" if self.exchange else ""
        return f"{scope}{self.topic}.@{self.server}" if self.server else f"{scope}{self.topic}"


def queue_name(target: Target) -> str:
    """Return the name of the queue of one server of a target, or of any."""
    return f"rpc:{target.title}"


def subject_name(target: Target) -> str:
    """Return the subject of messages to all servers of a target."""
    return f"rpc.{target(server=None).title}"


def queue_spec(name: str) -> QueueSpec:
    """Return the settings of a queue of calls, the same for every declaration."""
    return QueueSpec(name, kind="rpc", durable=False, max_bytes=_MAX_BYTES, expires=_EXPIRES, max_attempts=None)


def check_version(field: str, version: object) -> None:
    """Validate a version.

    Raises:
        ConfigError: It is not.
    """
    if not isinstance(version, str) or _VERSION.fullmatch(version) is None:
        raise ConfigError(field, version, "must be major.minor or major.minor.revision")


@lru_cache(maxsize=256)
def accepts(offered: str, wanted: str) -> bool:
    """Return True if a version satisfies another one: the same major, and not less; False also if one is no version."""
    found, asked = (_VERSION.fullmatch(each) for each in (offered, wanted))
    if found is None or asked is None:
        return False
    have, want = ([int(each or 0) for each in match.groups()] for match in (found, asked))
    return have[0] == want[0] and have[1:] >= want[1:]
