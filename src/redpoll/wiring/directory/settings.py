"""Settings of a directory in a TOML file: options, and static names."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from redpoll.address import Address
from redpoll.errors import UsageError
from redpoll.wiring.directory.entries import KINDS, Entry, Key, Kind, key_of, place_problem
from redpoll.wiring.names import Style

__all__ = ["Settings", "read_settings"]

#: Maximum size of a file of settings, in bytes.
_MAX_FILE = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings in a file; None and () for missing ones.

    Attributes:
        host: The address to listen at.
        port: The port.
        lease: The lease, in seconds.
        token_file: The file of the token.
        tls: The file of a certificate and its key.
        ca: The file of the trusted CAs.
        plain: Allow unencrypted links off loopback.
        entries: The static names.
    """

    host: str | None = None
    port: int | None = None
    lease: float | None = None
    token_file: str | None = None
    tls: str | None = None
    ca: str | None = None
    plain: bool | None = None
    entries: tuple[Entry, ...] = ()


def read_settings(path: str) -> Settings:
    """Read a file of settings. Relative paths in it start at the file's folder.

    Raises:
        UsageError: It cannot be read, is no TOML, or has an invalid setting: the text names the file and the key.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MAX_FILE + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    if len(data) > _MAX_FILE:
        raise UsageError(f"{path}: it has more than {_MAX_FILE // 1024**2} MiB")
    try:
        said = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: this is no TOML: {error}") from error
    try:
        return _settings(said, Path(path).parent)
    except _WrongError as error:
        raise UsageError(f"{path}: {error}", error.hint) from error.__cause__


class _WrongError(Exception):
    """A problem of the settings, with its key."""

    def __init__(self, key: str, problem: str, hint: str | None = None) -> None:
        super().__init__(f"{key}: {problem}")
        self.hint = hint


_TEXT = (lambda value: isinstance(value, str) and value != ""), "text"

#: By option: a test of its value, and what the value must be.
_OPTIONS: Mapping[str, tuple[Callable[[Any], bool], str]] = MappingProxyType(
    {
        "host": _TEXT,
        "port": (lambda value: type(value) is int and 0 <= value <= 65_535, "0 to 65535"),
        "lease": (lambda value: type(value) in {int, float} and 0.1 <= value <= 3600, "0.1 to 3600 seconds"),
        "token_file": _TEXT,
        "tls": _TEXT,
        "ca": _TEXT,
        "plain": (lambda value: type(value) is bool, "true or false"),
    }
)

_FILES = frozenset(("token_file", "tls", "ca"))


def _settings(said: Mapping[str, Any], folder: Path) -> Settings:
    options: dict[str, Any] = {}
    entries: dict[Key, Entry] = {}
    for key, value in said.items():
        if key in KINDS:
            if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
                raise _WrongError(key, "is no list of tables", f"write [[{key}]] above each")
            for place, table in enumerate(value):
                entry = _entry(key, f"{key}[{place}]", table)
                if entry.key in entries:
                    raise _WrongError(f"{key}[{place}].name", f"{entry.name!r} is there twice")
                entries[entry.key] = entry
            continue
        if key not in _OPTIONS:
            raise _WrongError(key, "there is no such option", f"there are {', '.join((*_OPTIONS, *KINDS))}")
        is_valid, what = _OPTIONS[key]
        if not is_valid(value):
            raise _WrongError(key, f"must be {what}")
        is_file = key in _FILES and (key, value) != ("ca", "system")
        options[key] = str(folder / value) if is_file else value
    return Settings(**options, entries=tuple(entries.values()))


def _entry(kind: Kind, where: str, table: Mapping[str, Any]) -> Entry:
    known = ("name", "address", "style") if kind == "exchange" else ("name", "address")
    for key in table:
        if key not in known:
            raise _WrongError(f"{where}.{key}", "there is no such key", f"there are {', '.join(known)}")
    checks: Mapping[str, Callable[[Any], Any]] = {"name": partial(key_of, kind), "address": Address.parse}
    for key, check in checks.items():
        if key not in table:
            raise _WrongError(f"{where}.{key}", "it is missing")
        try:
            check(table[key])
        except UsageError as error:
            raise _WrongError(f"{where}.{key}", error.text, error.hint) from error
    address = Address.parse(table["address"])
    problem = place_problem(address)
    if problem is not None:
        raise _WrongError(f"{where}.address", f"{address}: {problem}")
    style = table.get("style")
    styles = [each.value for each in Style]
    if style is not None and style not in styles:
        raise _WrongError(f"{where}.style", f"{style!r} is no style", f"there are {', '.join(styles)}")
    return Entry(kind, table["name"], address, style, static=True)
