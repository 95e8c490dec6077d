"""All pairs instead of all combinations: a test of many parameters runs so often that each two values meet."""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Mapping, Sequence
from itertools import combinations


def all_pairs(cases: Sequence[Mapping[str, Hashable]], name: str) -> list[int]:
    """Return the indexes of cases in which each two values meet that meet in any; the name decides among equals.

    Each value is in one of them, also where it is the only parameter, and so is a case without parameters.
    """
    missing = [_pairs(case) for case in cases]
    open_pairs = set().union(*missing)
    chosen = []
    draw = [zlib.crc32(f"{name} {sorted(case.items())}".encode()) for case in cases]
    while open_pairs:
        best = max(range(len(cases)), key=lambda at: (len(missing[at] & open_pairs), draw[at]))
        chosen.append(best)
        open_pairs -= missing[best]
    return sorted(chosen)


def _pairs(case: Mapping[str, Hashable]) -> set[Hashable]:
    values = sorted(case.items())
    return {(), *combinations(values, 2), *((value,) for value in values)}
