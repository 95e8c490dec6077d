"""Inputs near known ones."""

from __future__ import annotations

from itertools import islice

import pytest

from tests.fuzz.mutate import MAX_SIZE, Mutator

INPUTS = [b"an input", b"and another one, which is longer"]
WORDS = [b"WORD"]


def made(
    seed: int, count: int = 300, inputs: list[bytes] | None = None, words: list[bytes] | None = None
) -> list[bytes]:
    mutator = Mutator(seed, INPUTS if inputs is None else inputs, WORDS if words is None else words)
    return list(islice(iter(mutator.make, None), count))


def test_seeds() -> None:
    """The same seed makes the same inputs, another one others."""
    assert made(1) == made(1)
    assert made(1) != made(2)


def test_most_are_new() -> None:
    """Hardly any comes twice, and the format's words are in many."""
    found = made(1)
    assert len(set(found)) > 250
    assert sum(b"WORD" in each for each in found) > 50


@pytest.mark.parametrize("inputs", [[], [b""], [bytes(MAX_SIZE)]])
def test_sizes(inputs: list[bytes]) -> None:
    """From nothing something is made, and from much not more than there may be."""
    found = made(1, inputs=inputs, words=[])
    assert max(map(len, found)) in range(1, MAX_SIZE + 1)
