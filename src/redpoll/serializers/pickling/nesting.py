"""Containers whose deallocation recurses in C without a limit: deques, defaultdicts, and NumPy arrays of objects.

CPython limits that recursion for lists, tuples, dicts, sets and instances (its "trashcan"), and not for these. So the
reader keeps a reference to each of them until all are checked, and empties them one at a time if the pickle is
rejected: meanwhile no chain of them is deallocated recursively.
"""

from __future__ import annotations

import gc
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["ARRAYS_DEEP", "DEEP", "NestingError", "check", "empty"]

#: Maximum depth of nested deques and defaultdicts, whatever is between them. Each takes about 200 bytes of the C stack.
DEEP: Final = 2000

#: Maximum depth of nested arrays of objects. Each takes about 2,000 bytes.
ARRAYS_DEEP: Final = 100

_WEIGHT = DEEP // ARRAYS_DEEP
_HOLDERS = frozenset((list, dict, tuple, set, frozenset, deque, OrderedDict, Counter, defaultdict))

_Graph = dict[int, list[int]]


class NestingError(ValueError):
    """The containers cannot be deallocated safely."""


def check(held: list[Any], kinds: set[type]) -> None:
    """Reject containers that are nested too deeply, and arrays of objects that the garbage collector cannot free.

    Containers in a cycle count as that many levels.

    Args:
        held: All deques, defaultdicts and arrays of objects that a pickle created.
        kinds: Classes of instances in it, besides Python's own containers.

    Raises:
        NestingError: More than `DEEP` or `ARRAYS_DEEP` of them are nested, or an array of objects contains itself:
            NumPy arrays do not take part in garbage collection.
    """
    arrays = [each for each in held if not isinstance(each, deque | defaultdict)]
    if len(held) + (_WEIGHT - 1) * len(arrays) <= DEEP:
        held = arrays
    if not held:
        return
    weights = dict.fromkeys(map(id, held), 1) | dict.fromkeys(map(id, arrays), _WEIGHT)
    holders = _HOLDERS | kinds | set(map(type, arrays))
    if not _is_nested(held, weights, holders):
        return
    graph = _walk(held, weights, holders)
    down, rest = _peel(graph, weights)
    up, core = _peel(rest, weights)
    if any(weights.get(each, 0) > 1 for each in core):
        raise NestingError("an array of objects contains itself and could never be freed")
    if down + up + sum(weights.get(each, 0) for each in core) > DEEP:
        raise NestingError(
            f"deques and defaultdicts are nested more than {DEEP:,} deep, or arrays of objects more than {ARRAYS_DEEP}"
        )


def empty(held: list[Any]) -> None:
    """Empty the containers, one at a time."""
    for each in held:
        if isinstance(each, deque | defaultdict):
            each.clear()
        else:
            each.flags.writeable = True
            each.fill(None)


def _is_nested(held: list[Any], weights: Mapping[int, int], holders: frozenset[type]) -> bool:
    """Return True if any of these contains another."""
    seen: set[int] = set()
    items = [item for each in held for item in _items(each, weights)]
    while items := [item for item in items if type(item) in holders]:
        if not weights.keys().isdisjoint(map(id, items)):
            return True
        fresh = {id(item): item for item in items if id(item) not in seen}
        seen.update(fresh)
        items = gc.get_referents(*fresh.values())
    return False


def _walk(held: list[Any], weights: Mapping[int, int], holders: frozenset[type]) -> _Graph:
    """Return the containment graph, starting from these containers."""
    graph: _Graph = {}
    waiting = held.copy()
    while waiting:
        each = waiting.pop()
        if id(each) not in graph:
            items = [item for item in _items(each, weights) if type(item) in holders]
            graph[id(each)] = list(map(id, items))
            waiting += items
    return graph


def _items(each: Any, weights: Mapping[int, int]) -> list[Any]:
    # The garbage collector does not know what an array contains.
    return each.ravel().tolist() if weights.get(id(each), 0) > 1 else gc.get_referents(each)


def _peel(graph: _Graph, weights: Mapping[int, int]) -> tuple[int, _Graph]:
    """Repeatedly remove the containers that contain nothing any more.

    Returns:
        The largest weight of those nested in each other, and the remaining graph with its edges reversed: containers on
        a cycle, or that contain one.
    """
    owners: _Graph = {each: [] for each in graph}
    for each, items in graph.items():
        for item in items:
            owners[item].append(each)
    left = {each: len(items) for each, items in graph.items()}
    below: dict[int, int] = {}
    gone = [each for each, count in left.items() if not count]
    deepest = 0
    for each in gone:
        depth = below.get(each, 0) + weights.get(each, 0)
        deepest = max(deepest, depth)
        for owner in owners[each]:
            if depth > below.get(owner, 0):
                below[owner] = depth
            left[owner] -= 1
            if not left[owner]:
                gone.append(owner)
    return deepest, {each: [one for one in owners[each] if left[one]] for each, count in left.items() if count}
