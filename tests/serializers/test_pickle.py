"""pickle: Python's objects, by an allow-list."""

from __future__ import annotations

import contextlib
import enum
import pickle
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redpoll import serializers
from redpoll.errors import ConfigError, DecodeError, EncodeError
from redpoll.serializers import PickleSerializer
from tests.serializers.pickling.streams import raw
from tests.serializers.pickling.test_opcodes import VALUES

PICKLE = PickleSerializer()


class Point(NamedTuple):
    x: int
    y: int


class Color(enum.Enum):
    RED = 1


@dataclass
class Job:
    name: str
    parent: Any = None


@dataclass(frozen=True, slots=True)
class Frozen:
    name: str


class Fails:
    def __reduce__(self) -> Any:
        raise RuntimeError("not this one")


class Explodes:
    def __setstate__(self, state: object) -> None:
        raise RuntimeError("no such state")

    def __getstate__(self) -> int:
        return 1


def turned(value: Any, serializer: PickleSerializer = PICKLE) -> Any:
    """The result of a round trip."""
    return serializer.decode(bytes(serializer.encode(value)))


@given(VALUES)
def test_builtins_come_back(value: Any) -> None:
    """Builtins survive a round trip with their types, from any kind of buffer."""
    sent = bytes(PICKLE.encode(value))
    for buffer in (sent, bytearray(sent), memoryview(sent), memoryview(bytearray(sent))):
        found = PICKLE.decode(buffer)
        assert found == value
        assert type(found) is type(value)


@pytest.mark.parametrize("value", [Point(1, 2), Color.RED, Job("a"), Frozen("b"), Job, len], ids=repr)
def test_classes_that_are_let_in(value: Any) -> None:
    """Objects of a program's own classes survive where those are allowed, and nowhere else."""
    with pytest.raises(DecodeError, match="allow="):
        turned(value)
    assert turned(value, PickleSerializer([Point, Color, Job, Frozen, len])) == value


def test_circles_and_sharing() -> None:
    """An object that refers to itself does so again, and one that is shared is shared again."""
    job = Job("a")
    job.parent = [job, {"self": job}]
    found = turned(job, PickleSerializer([Job]))
    assert found.parent[0] is found
    assert found.parent[1]["self"] is found


def test_what_cannot_be_pickled() -> None:
    """Whatever pickle or a class has against it is an EncodeError with the cause."""
    for value in (lambda: None, (each for each in "a"), Fails(), type("Local", (), {})()):
        with pytest.raises(EncodeError) as caught:
            PICKLE.encode(value)
        assert caught.value.__cause__ is not None
    deep: list[Any] = []
    for _ in range(200_000):
        deep = [deep]
    with pytest.raises(EncodeError):
        PICKLE.encode(deep)


def test_what_a_class_raises_is_a_decode_error() -> None:
    """An allowed class may raise anything: it is an error of the data."""
    with pytest.raises(DecodeError, match="no such state") as caught:
        turned(Explodes(), PickleSerializer([Explodes]))
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_plain_pickle_is_refused() -> None:
    """This serializer does not read pickle's own output: it has no frame."""
    with pytest.raises(DecodeError, match="not written by this serializer"):
        PICKLE.decode(pickle.dumps(list(range(100))))


def test_the_name_is_a_serializer_and_makes_others() -> None:
    """`serializers.pickle` is the one with the default list; called, it makes one with options."""
    assert isinstance(serializers.pickle, PickleSerializer)
    made = serializers.pickle(allow=["fractions.Fraction"])
    assert isinstance(made, PickleSerializer)
    assert made is not serializers.pickle
    assert made.wants_buffer


def test_own_functions() -> None:
    """With functions of the program's own nothing is checked, which is why both have to be given."""
    own = PickleSerializer(dump=pickle.dumps, load=pickle.loads)
    assert turned(Job("a"), own) == Job("a")
    with pytest.raises(DecodeError):
        own.decode(b"nonsense")
    with pytest.raises(EncodeError):
        own.encode(lambda: None)
    with pytest.raises(EncodeError, match="carries bytes"):
        PickleSerializer(dump=str, load=str).encode(5)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"dump": pickle.dumps}, "load=None: is required with"),
        ({"load": pickle.loads}, "dump=None: is required with"),
        ({"dump": pickle.dumps, "load": pickle.loads, "allow": [Job]}, "ignores allow"),
        ({"dump": pickle.dumps, "load": pickle.loads, "persistent_load": id}, "and persistent ids"),
        ({"dump": 5, "load": pickle.loads}, "dump=5: is not callable"),
        ({"persistent_id": 5}, "is not callable"),
        ({"allow": ["uuid"]}, "is a module"),
    ],
)
def test_options_that_contradict(options: dict[str, Any], problem: str) -> None:
    """Options that would do nothing, or not what they seem to, are a ConfigError."""
    with pytest.raises(ConfigError, match=problem):
        PickleSerializer(**options)


def test_persistent_ids() -> None:
    """Objects that both ends have are sent by their ids; a receiver without ids rejects them."""
    engine = object()
    ends = PickleSerializer(
        persistent_id=lambda obj: "engine" if obj is engine else None, persistent_load={"engine": engine}.__getitem__
    )
    assert turned([engine, 1], ends) == [engine, 1]
    sent = bytes(ends.encode(engine))
    with pytest.raises(DecodeError):
        PICKLE.decode(sent)
    with pytest.raises(DecodeError, match="engine"):
        PickleSerializer(persistent_load={}.__getitem__).decode(sent)


def test_memory_that_was_received_is_used() -> None:
    """A large part is the memory that it was received into."""
    body = bytearray(bytes(PICKLE.encode(memoryview(bytearray(5000)))))
    PICKLE.decode(memoryview(body))[0] = 1
    assert body[-5000] == 1


@given(st.binary(max_size=100))
def test_any_stream_is_a_value_or_a_decode_error(junk: bytes) -> None:
    """Any stream raises nothing but a DecodeError."""
    with contextlib.suppress(DecodeError):
        PICKLE.decode(raw(b"\x80\x05" + junk + b"."))
