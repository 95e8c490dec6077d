from __future__ import annotations

import pickle

import pytest

from redpoll.serializers.pickling import names
from redpoll.serializers.pickling.names import MODULE, named


def test_a_name_is_pickled_as_a_global() -> None:
    """A pickle has the module and the name: both are part of the format."""
    assert MODULE == "redpoll.serializers.pickling.names"
    assert MODULE.encode() in pickle.dumps(named("date"), 5)
    assert pickle.loads(pickle.dumps(named("date"), 5)) is named("date")
    assert names.date is named("date")


def test_nothing_is_called() -> None:
    """A name does nothing by itself."""
    with pytest.raises(TypeError, match="is a name"):
        named("date")(1)


def test_there_are_no_others() -> None:
    """A name that the serializer does not use is no attribute."""
    with pytest.raises(AttributeError):
        names.nothing  # noqa: B018
