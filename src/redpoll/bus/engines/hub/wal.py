"""SQLite's log: whether it was damaged after it was written.

SQLite reads a log up to the first frame that is not whole, as a power failure leaves an incomplete transaction at the end,
and drops everything behind it. Each transaction is synced before the next one begins, so a later one behind such a frame
proves that the frame was whole once. See https://sqlite.org/fileformat2.html#walformat.
"""

from __future__ import annotations

import struct
import sys
from array import array
from pathlib import Path
from typing import Final

__all__ = ["find_damage"]

_HEADER: Final = struct.Struct(">IIIIIIII")
_FRAME: Final = struct.Struct(">IIIIII")
# Magic number of logs, but for the last bit, which is the byte order of the checksums.
_MAGIC: Final = 0x377F0682


def find_damage(database: str) -> str | None:
    """Return what is wrong with the log of a database that nobody uses, or None.

    What was cut off at its end, and damage in its last frames, look like a power failure and are not found.

    Args:
        database: The file of the database; its log is beside it.
    """
    try:
        file = Path(f"{database}-wal").open("rb")  # noqa: SIM115 - closed below
    except FileNotFoundError:
        return None
    with file:
        head = file.read(_HEADER.size)
        first = file.read(_FRAME.size)
        if len(first) < _FRAME.size:
            return None
        magic, _, size, _, *salts, one, two = _HEADER.unpack(head)
        order = "big" if magic & 1 else "little"
        if magic & ~1 != _MAGIC or _checksum(head[:24], 0, 0, order) != (one, two):
            return "the header of its log is not whole"
        if not Path(database).stat().st_size:
            return "it is empty, but has a log"
        broken = number = 0
        committed = False
        while True:
            data = file.read(size)
            if len(data) < size:
                return None
            number += 1
            _, pages, *found, now_one, now_two = _FRAME.unpack(first)
            whole = found == salts and _checksum(first[:8] + data, one, two, order) == (now_one, now_two)
            if not broken and not whole:
                broken = number
            elif broken and whole:
                if committed:
                    return f"frame {broken} of its log is not whole, but later ones are"
                committed = pages > 0
            one, two = now_one, now_two
            first = file.read(_FRAME.size)
            if len(first) < _FRAME.size:
                return None


def _checksum(data: bytes, one: int, two: int, order: str) -> tuple[int, int]:
    words = array("I", data)
    if order != sys.byteorder:
        words.byteswap()
    values = iter(words)
    for even, odd in zip(values, values, strict=True):
        one = (one + even + two) & 0xFFFFFFFF
        two = (two + odd + one) & 0xFFFFFFFF
    return one, two
