"""Permissions: words, each with patterns of names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal, get_args

from redpoll.bus.broker.topics import Topics
from redpoll.bus.records import QueueKind, QueueSpec
from redpoll.errors import ConfigError, NotAuthorized

__all__ = ["CONSUME", "PUBLISH", "READ", "Permissions", "Word", "title_of"]

Word = Literal["submit", "work", "call", "serve", "publish", "subscribe", "read results", "administer"]

_WORDS: Final = frozenset(get_args(Word))

PUBLISH: Final[Mapping[QueueKind, Word]] = {"task": "submit", "rpc": "call", "events": "administer"}
"""The permission for putting something into a queue of a kind. An events queue is filled by its topics."""

CONSUME: Final[Mapping[QueueKind, Word]] = {"task": "work", "rpc": "serve", "events": "subscribe"}
"""The permission for consuming from a queue of a kind."""

READ: Final[Mapping[QueueKind, Word]] = {"task": "read results", "rpc": "call", "events": "administer"}
"""The permission for asking for the state and the outcome of a task that somebody else may have submitted."""


class Permissions:
    """The permissions of one identity.

    Names of queues are given without the prefix that a pattern puts before them ("rpc:calculator" is "calculator").

    Args:
        name: Name of the identity, for errors.
        allowed: Patterns of names by word: ``{"submit": ["night", "images.#"]}``. What is not there is not allowed.

    Attributes:
        name: Name of the identity.
        allowed: The patterns by word.

    Raises:
        ConfigError: There is no such word, or a pattern cannot be one.
    """

    def __init__(self, name: str, allowed: Mapping[str, Iterable[str]]) -> None:
        self.name = name
        self.allowed: dict[str, frozenset[str]] = {}
        self._topics: dict[str, Topics[None]] = {}
        for word, patterns in allowed.items():
            if word not in _WORDS:
                raise ConfigError("permissions", word, f"must be one of {', '.join(sorted(_WORDS))}")
            topics = self._topics[word] = Topics()
            self.allowed[word] = frozenset(patterns)
            for pattern in self.allowed[word]:
                topics.add(pattern, None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Permissions) and (self.name, self.allowed) == (other.name, other.allowed)

    __hash__ = None  # type: ignore[assignment]  # compared, never looked up

    def allow(self, word: Word, name: str) -> bool:
        """Return True if something is allowed for a name."""
        topics = self._topics.get(word)
        return topics is not None and bool(topics.match(name))

    def require(self, word: Word, name: str, *others: Word) -> None:
        """Raise unless something is allowed for a name, or one of the others is.

        Raises:
            NotAuthorized: None of them is.
        """
        if not any(self.allow(each, name) for each in (word, *others)):
            raise NotAuthorized(f"{self.name!r} may not {word} {name!r}")

    def require_pattern(self, pattern: str, word: Word = "subscribe", *others: Word) -> None:
        """Raise unless something is allowed for all names that a pattern can match, or one of the others is.

        Raises:
            NotAuthorized: For some none of them is.
        """
        patterns = [allowed for each in (word, *others) for allowed in self.allowed.get(each, ())]
        if not any(_covers(allowed.split("."), pattern.split(".")) for allowed in patterns):
            done = "subscribe to" if word == "subscribe" else word
            raise NotAuthorized(f"{self.name!r} may not {done} {pattern!r}")


def title_of(spec: QueueSpec) -> str:
    """Return the name of a queue that permissions are for: of a "task" all of it, of others without the prefix."""
    prefix, _, title = spec.name.partition(":")
    return spec.name if spec.kind == "task" else title or prefix


def _covers(allowed: list[str], asked: list[str]) -> bool:
    """Return True if each subject that the second matches is matched by the first."""
    if not allowed:
        return not asked
    if allowed[0] == "#":
        return any(_covers(allowed[1:], asked[skip:]) for skip in range(len(asked) + 1))
    if not asked or asked[0] == "#":
        return False
    return allowed[0] in {"*", asked[0]} and _covers(allowed[1:], asked[1:])
