"""Who may do what: words, and patterns of the names that they are for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal, get_args

from redpoll.bus.broker.topics import Topics
from redpoll.bus.records import QueueKind
from redpoll.errors import ConfigError, NotAuthorized

__all__ = ["CONSUME", "PUBLISH", "Permissions", "Word"]

Word = Literal["submit", "work", "call", "serve", "publish", "subscribe", "read results", "administer"]

_WORDS: Final = frozenset(get_args(Word))

PUBLISH: Final[Mapping[QueueKind, Word]] = {"task": "submit", "rpc": "call", "events": "administer"}
"""What putting something into a queue of a kind needs. An events queue is filled by its topics."""

CONSUME: Final[Mapping[QueueKind, Word]] = {"task": "work", "rpc": "serve", "events": "subscribe"}
"""What consuming from a queue of a kind needs."""


class Permissions:
    """What one identity may do.

    Names of queues are given without the prefix that a pattern puts before them ("rpc:calculator" is "calculator").
    Who subscribes to a pattern needs permission for each subject that it can match.

    Args:
        name: Who it is, for errors.
        allowed: Patterns of names by word: ``{"submit": ["night", "images.#"]}``. What is not there is not allowed.

    Raises:
        ConfigError: There is no such word, or a pattern cannot be one.
    """

    def __init__(self, name: str, allowed: Mapping[str, Iterable[str]]) -> None:
        self.name = name
        self._allowed: dict[str, Topics[None]] = {}
        self._patterns: dict[str, frozenset[str]] = {}
        for word, patterns in allowed.items():
            if word not in _WORDS:
                raise ConfigError("permissions", word, f"must be one of {', '.join(sorted(_WORDS))}")
            topics = self._allowed[word] = Topics()
            self._patterns[word] = frozenset(patterns)
            for pattern in self._patterns[word]:
                topics.add(pattern, None)

    def allow(self, word: Word, name: str) -> bool:
        """Whether something is allowed for a name."""
        topics = self._allowed.get(word)
        return topics is not None and bool(topics.match(name))

    def require(self, word: Word, name: str) -> None:
        """Raise unless something is allowed.

        Raises:
            NotAuthorized: It is not.
        """
        if not self.allow(word, name):
            raise NotAuthorized(f"{self.name!r} may not {word} {name!r}")

    def require_pattern(self, pattern: str) -> None:
        """Raise unless all that a pattern can match may be subscribed to.

        Raises:
            NotAuthorized: Something of it may not.
        """
        patterns = self._patterns.get("subscribe", frozenset())
        if not any(_covers(allowed.split("."), pattern.split(".")) for allowed in patterns):
            raise NotAuthorized(f"{self.name!r} may not subscribe to {pattern!r}")


def _covers(allowed: list[str], asked: list[str]) -> bool:
    """Whether each subject that the second matches is matched by the first."""
    if not allowed:
        return not asked
    if allowed[0] == "#":
        return any(_covers(allowed[1:], asked[skip:]) for skip in range(len(asked) + 1))
    if not asked or asked[0] == "#":
        return False
    return allowed[0] in {"*", asked[0]} and _covers(allowed[1:], asked[1:])
