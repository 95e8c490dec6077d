from __future__ import annotations

import collections
import os
import uuid
from typing import Any

import pytest

from redpoll.errors import ConfigError
from redpoll.serializers import allow_by_name
from redpoll.serializers.pickling.allow import collect, entry


class Outer:
    """A class with one in it."""

    class Inner:
        """One in it."""


def test_classes_functions_and_names() -> None:
    """Each entry is in the table under module and name, exactly."""
    found = collect([uuid.UUID, Outer.Inner, os.path.join, "package.module.Name"])
    assert found == {
        ("uuid", "UUID"): uuid.UUID,
        (__name__, "Outer.Inner"): Outer.Inner,
        (os.path.join.__module__, "join"): os.path.join,
        ("package.module", "Name"): None,
    }


@pytest.mark.parametrize("module", ["uuid", "builtins", "os.path", "collections.abc", "nowhere"])
def test_a_module_is_refused_with_the_reason(module: str) -> None:
    """The name of a module would allow all that it imports; the error says so and what to write."""
    with pytest.raises(ConfigError, match="that would allow everything in it") as caught:
        allow_by_name(module)
    assert caught.value.hint == f'name what you mean: "{module}.SomeClass"'


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (uuid, "is a module"),
        (5, "is neither a class"),
        (lambda: None, "has no importable name"),
        ("uuid.UUID.", "is not of the form"),
        ("uuid:UUID", "is not of the form"),
        ("", "is not of the form"),
        ("uuid.*", "is not of the form"),
        (collections.deque([1]), "is neither a class"),
    ],
)
def test_what_names_nothing_is_refused(given: Any, problem: str) -> None:
    """An entry that is neither a class, a function nor a full name is a ConfigError."""
    with pytest.raises(ConfigError, match=problem):
        collect([given])


@pytest.mark.parametrize("given", ["uuid.UUID", b"x", None, 5])
def test_it_is_a_list(given: Any) -> None:
    """One name by itself is a likely slip, and is no list of letters."""
    with pytest.raises(ConfigError, match="is not a list"):
        collect(given)


def test_allow_by_name() -> None:
    """The names are handed back for `allow`."""
    assert allow_by_name("uuid.UUID", "a.b") == ("uuid.UUID", "a.b")


def test_the_entry_for_a_name() -> None:
    """The entry that an error proposes can be used as it is; a nested class has to be given itself."""
    assert entry("uuid", "UUID") == 'allow=["uuid.UUID"]'
    assert entry("a", "Outer.Inner") == "allow=[Outer.Inner], the class itself"
