"""Targets by patterns of subjects: a tree, and a cache of matches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Generic, TypeVar

from redpoll.bus.records import check_subject

__all__ = ["Topics"]

TargetT = TypeVar("TargetT")

_SUBJECTS: Final = 4_096
_TARGETS: Final = 1_000_000


class _Node(Generic[TargetT]):
    __slots__ = ("any_number", "targets", "words")

    def __init__(self, any_number: bool = False) -> None:
        self.words: dict[str, _Node[TargetT]] = {}
        self.targets: dict[TargetT, int] = {}
        self.any_number = any_number


class Topics(Generic[TargetT]):
    """Targets by patterns: words separated by dots, ``*`` for one word, ``#`` for any number of them.

    Matching walks the tree along the words of the subject: its cost grows with the patterns that begin alike, not
    with their number; a subject that was matched before costs a look-up, until the targets change. A target with
    several patterns is found once.
    """

    def __init__(self) -> None:
        self._root: _Node[TargetT] = _Node()
        self._found: dict[str, tuple[TargetT, ...]] = {}
        self._held = 0
        self.count = 0

    def add(self, pattern: str, target: TargetT) -> None:
        """Add a target for a pattern; one that was added twice has to be removed twice.

        Raises:
            ConfigError: The pattern is not valid.
        """
        check_subject("pattern", pattern, pattern=True)
        node = self._root
        for word in pattern.split("."):
            node = node.words.setdefault(word, _Node(word == "#"))
        node.targets[target] = node.targets.get(target, 0) + 1
        self.count += 1
        self._forget()

    def remove(self, pattern: str, target: TargetT) -> None:
        """Remove a target that was added for a pattern."""
        path = [self._root]
        words = pattern.split(".")
        for word in words:
            path.append(path[-1].words[word])
        node = path[-1]
        node.targets[target] -= 1
        if not node.targets[target]:
            del node.targets[target]
        for word, above in zip(reversed(words), reversed(path[:-1]), strict=True):
            below = above.words[word]
            if below.targets or below.words:
                break
            del above.words[word]
        self.count -= 1
        self._forget()

    def match(self, subject: str) -> tuple[TargetT, ...]:
        """Return the targets whose patterns match a subject.

        Raises:
            ConfigError: The subject is not valid.
        """
        found = self._found.get(subject)
        return self._match(subject) if found is None else found

    def _match(self, subject: str) -> tuple[TargetT, ...]:
        check_subject("subject", subject)
        nodes = _with_none({self._root: None})
        for word in subject.split("."):
            after: dict[_Node[TargetT], None] = {}
            for node in nodes:
                if node.any_number:
                    after[node] = None
                for found in (node.words.get(word), node.words.get("*")):
                    if found is not None:
                        after[found] = None
            nodes = _with_none(after)
        targets = tuple(dict.fromkeys(target for node in nodes for target in node.targets))
        if len(self._found) >= _SUBJECTS or self._held > _TARGETS:
            self._forget()
        self._found[subject] = targets
        self._held += len(targets)
        return targets

    def _forget(self) -> None:
        if self._found:
            self._found = {}
            self._held = 0


def _with_none(nodes: Iterable[_Node[TargetT]]) -> dict[_Node[TargetT], None]:
    """Return the nodes, and those that are reached by a ``#`` that stands for no word."""
    found = dict.fromkeys(nodes)
    for node in tuple(found):
        below = node.words.get("#")
        while below is not None and below not in found:
            found[below] = None
            below = below.words.get("#")
    return found
