"""Inputs near known ones: what goes wrong mostly stands close to what goes right."""

from __future__ import annotations

import random
from collections.abc import Sequence

__all__ = ["MAX_SIZE", "Mutator"]

#: Bytes that an input has at most.
MAX_SIZE = 4096

_STEPS = 6
_BORDERS = (0, 1, 2, 3, 4, 7, 8, 15, 16, 27, 31, 32, 63, 64, 127, 128, 192, 224, 247, 248, 254, 255)


class Mutator:
    """Makes inputs out of others: the same ones from the same seed.

    Args:
        seed: Of all that is drawn.
        inputs: What is begun with; an empty one if there is none.
        words: Constants of the format.
    """

    def __init__(self, seed: int, inputs: Sequence[bytes], words: Sequence[bytes]) -> None:
        self._draw = random.Random(seed)
        self._inputs = list(inputs) or [b""]
        self._words = list(words) or [b"\0"]
        self._ways = (
            self._set_byte,
            self._flip_bit,
            self._set_border,
            self._add,
            self._insert_word,
            self._insert_word,
            self._write_word,
            self._insert_noise,
            self._remove,
            self._repeat,
            self._move,
            self._splice,
            self._truncate,
        )

    def make(self) -> bytes:
        """Return a new input."""
        draw = self._draw
        data = bytearray(draw.choice(self._inputs))
        for _ in range(draw.randint(1, _STEPS)):
            draw.choice(self._ways)(data)
        return bytes(data[:MAX_SIZE])

    def _place(self, data: bytearray) -> int:
        return self._draw.randrange(len(data) + 1)

    def _span(self, data: bytes | bytearray) -> slice:
        """A stretch of some data, short ones more often."""
        start = self._draw.randrange(len(data) + 1)
        return slice(start, start + int((len(data) - start + 1) ** self._draw.random()))

    def _set_byte(self, data: bytearray) -> None:
        if data:
            data[self._draw.randrange(len(data))] = self._draw.randrange(256)

    def _flip_bit(self, data: bytearray) -> None:
        if data:
            data[self._draw.randrange(len(data))] ^= 1 << self._draw.randrange(8)

    def _set_border(self, data: bytearray) -> None:
        if data:
            data[self._draw.randrange(len(data))] = self._draw.choice(_BORDERS)

    def _add(self, data: bytearray) -> None:
        """Count a number of some bytes up or down."""
        size = self._draw.choice((1, 2, 4, 8))
        if len(data) >= size:
            place = self._draw.randrange(len(data) - size + 1)
            number = int.from_bytes(data[place : place + size], "big") + self._draw.randint(-9, 9)
            data[place : place + size] = (number % (1 << 8 * size)).to_bytes(size, "big")

    def _insert_word(self, data: bytearray) -> None:
        place = self._place(data)
        data[place:place] = self._draw.choice(self._words)

    def _write_word(self, data: bytearray) -> None:
        place, word = self._place(data), self._draw.choice(self._words)
        data[place : place + len(word)] = word

    def _insert_noise(self, data: bytearray) -> None:
        place = self._place(data)
        data[place:place] = self._draw.randbytes(self._draw.randint(1, 8))

    def _remove(self, data: bytearray) -> None:
        del data[self._span(data)]

    def _repeat(self, data: bytearray) -> None:
        place = self._place(data)
        data[place:place] = data[self._span(data)] * self._draw.choice((1, 1, 2, 5))
        del data[MAX_SIZE:]

    def _move(self, data: bytearray) -> None:
        span = self._span(data)
        piece = data[span]
        del data[span]
        place = self._place(data)
        data[place:place] = piece

    def _splice(self, data: bytearray) -> None:
        """Put a part of another input in."""
        other = self._draw.choice(self._inputs)
        place = self._place(data)
        data[place:place] = other[self._span(other)]

    def _truncate(self, data: bytearray) -> None:
        del data[self._place(data) :]
