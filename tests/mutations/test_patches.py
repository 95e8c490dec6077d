"""The mutations can still be made; which tests find them is what `python -m tests.mutations.run` says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.mutations.run import HERE, ROOT, Mutation, StaleError, catalogue

MUTATIONS = catalogue()


def changed_lines() -> Iterator[tuple[str, list[str]]]:
    """Yield each patch's name and the lines that it takes out and puts in."""
    for path in HERE.glob("*.patch"):
        yield path.name, re.findall(r"^[-+](?![-+]{2} ).*", path.read_text(), re.MULTILINE)


def test_every_mutation_applies_and_changes_the_code() -> None:
    """Each patch finds its line, and the file is another program with it."""
    unchanged = []
    for mutation in MUTATIONS.values():
        text = (ROOT / mutation.path).read_text()
        if ast.dump(ast.parse(mutation.applied(text))) == ast.dump(ast.parse(text)):
            unchanged.append(mutation.name)
    assert not unchanged


def test_every_mutation_is_one_line_and_says_what_it_breaks() -> None:
    """Each patch changes one line of the library, and its comment says in words what is broken."""
    assert all(len(lines) in {1, 2} and len({line[0] for line in lines}) == len(lines) for _, lines in changed_lines())
    assert all(mutation.meaning.endswith(".") for mutation in MUTATIONS.values())
    assert all(mutation.name.startswith(f"{mutation.folder.name}-") for mutation in MUTATIONS.values())


def test_there_are_mutations_of_each_part() -> None:
    """The parts that keep the promise are all broken somewhere, thirty times together."""
    assert {mutation.folder.name for mutation in MUTATIONS.values()} == {
        "blocking",
        "node",
        "nq",
        "transport",
        "wire",
        "wiring",
    }
    assert len(MUTATIONS) >= 30


def test_a_stale_mutation_is_told() -> None:
    """A patch whose lines are gone, or are there twice, does not apply."""
    mutation = Mutation.read(HERE / "wire-window-off-by-one.patch")
    assert mutation.after in mutation.applied(f"{mutation.before}x = 1\n")
    for text in ("", 2 * mutation.before):
        with pytest.raises(StaleError, match="wire-window-off-by-one"):
            mutation.applied(text)
