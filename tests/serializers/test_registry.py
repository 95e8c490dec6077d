"""Serializers by name."""

from __future__ import annotations

from typing import Any

import pytest

from redpoll import serializers
from redpoll.errors import ConfigError
from redpoll.serializers import SERIALIZERS, JsonSerializer, RawSerializer, get


def test_the_names_are_the_documented_ones() -> None:
    """Each serializer is found under its own name, and asking twice gives the same object."""
    assert list(SERIALIZERS) == ["raw", "buffer", "msgpack", "json", "pickle"]
    for name in SERIALIZERS:
        assert get(name).name == name
        assert get(name) is get(name)


def test_each_is_there_by_its_name() -> None:
    """`serializers.json` is the object named "json", and can be passed to a node."""
    for name, serializer in SERIALIZERS.items():
        assert getattr(serializers, name) is serializer


def test_the_table_cannot_be_changed() -> None:
    """No other serializer can be registered under a used name."""
    with pytest.raises(TypeError):
        SERIALIZERS["raw"] = JsonSerializer()  # type: ignore[index]


def test_a_serializer_is_given_back() -> None:
    """An object is returned as it is."""
    own = RawSerializer()
    assert get(own) is own


def test_an_unknown_name_lists_the_known() -> None:
    """The error names the option and the names there are."""
    with pytest.raises(ConfigError) as caught:
        get("yaml")
    assert str(caught.value) == (
        "serializer='yaml': there is no such serializer (choose one of raw, buffer, msgpack, json, pickle)"
    )


@pytest.mark.parametrize("given", [None, 5, object(), RawSerializer, b"raw"])
def test_what_is_no_serializer_is_refused(given: Any) -> None:
    """A class, and an object without the methods, are a ConfigError."""
    with pytest.raises(ConfigError, match=r"is not a Serializer \(pass a name, or an object of such a class\)"):
        get(given)


def test_the_package_hands_on_what_it_says() -> None:
    """Every name in __all__ is there."""
    assert all(hasattr(serializers, name) for name in serializers.__all__)
