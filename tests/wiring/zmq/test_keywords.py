"""Names of two generations for one parameter."""

from __future__ import annotations

import pytest

from redpoll.wiring.zmq.keywords import UNSET, Names

NAMES = Names("f", "name", "scope", text="name")


def test_each_name_will_do() -> None:
    """The value is that of the name that was given, None as well."""
    assert NAMES.read({}, name="a", scope=None) == ("a", None)
    assert NAMES.read({"text": "a"}, name=UNSET, scope=2) == ("a", 2)
    assert NAMES.read({"text": None}, name=UNSET) == (None,)
    assert NAMES.read({"text": "a"}, name=None) == ("a",)


def test_two_names_for_one() -> None:
    """Both at once is an error that says that they are the same."""
    with pytest.raises(TypeError, match=r"f\(\) got 'name' and 'text', which are one and the same"):
        NAMES.read({"text": "a"}, name="a")


def test_none_of_the_names() -> None:
    """What has to be given and was not is named as this generation names it."""
    with pytest.raises(TypeError, match=r"f\(\) misses 'name'"):
        NAMES.read({}, name=UNSET)


def test_unknown_names() -> None:
    """A keyword of neither generation is told the one that was meant, or all."""
    with pytest.raises(TypeError, match=r"f\(\) got an unexpected keyword argument 'nmae': did you mean 'name'\?"):
        NAMES.read({"nmae": 1}, name=1)
    with pytest.raises(TypeError, match=r"f\(\) got an unexpected keyword argument 'q': it takes name, scope, text"):
        NAMES.read({"q": 1}, name=1)


def test_unset_shows_itself_briefly() -> None:
    """Signatures in the documentation show what is not given as three dots."""
    assert repr(UNSET) == "..."
