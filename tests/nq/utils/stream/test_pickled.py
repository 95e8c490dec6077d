"""Pickles in streams: what redpoll's serializer lets in, behind the interface of net-queue's."""

from __future__ import annotations

import decimal
import pickle
import subprocess
import sys
import tracemalloc
import types
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redpoll import serializers
from redpoll.errors import ConfigError, DecodeError, EncodeError
from redpoll.nq import PickleSerializer, PicklingError, Stream, UnpicklingError
from redpoll.nq.core.codec import parts
from tests.cli.support import environment
from tests.serializers.pickling.acts import heard
from tests.serializers.pickling.attacks import ARRAYS, ATTACKS
from tests.serializers.pickling.streams import body, call, named, text
from tests.serializers.pickling.test_opcodes import VALUES

PICKLE = PickleSerializer()
BIG = 256 * 1024
EVERYTHING = {**ATTACKS, **ARRAYS}


class Job:
    """What a program lets in."""

    class Inner:
        """A class within a class."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.name == self.name

    __hash__ = None  # type: ignore[assignment]


JOB = f"{__name__}.Job"
# What the documents of net-queue name, and a class of the program's.
DOCUMENTED = ("uuid.UUID", "decimal.Context", JOB)


def received(stream: Stream) -> Stream:
    """What arrives of a dumped stream: one piece of memory that can be written to."""
    return Stream.frombuffer(bytearray(bytes(parts(stream))))


def turned(value: Any, serializer: PickleSerializer = PICKLE) -> Any:
    """What comes of a value."""
    return serializer.load(received(serializer.dump(value)))


@given(VALUES, st.integers(1, 9))
def test_values_come_back(value: Any, size: int) -> None:
    """Values come back equal, in one piece or in any, and the stream is empty then."""
    whole = bytes(parts(PICKLE.dump(value)))
    pieces = Stream()
    pieces.writeviews([whole[at : at + size] for at in range(0, len(whole), size)])
    for stream in (Stream.frombuffer(whole), Stream.frombuffer(bytearray(whole)), pieces):
        assert PICKLE.load(stream) == value
        assert not stream


def test_it_is_redpolls_pickle() -> None:
    """Both serializers of the package read what the other writes."""
    value = {"id": uuid.uuid4(), "at": np.arange(BIG)}
    for found in (
        PICKLE.load(Stream.frombuffer(bytearray(bytes(serializers.pickle.encode(value))))),
        serializers.pickle.decode(bytes(parts(PICKLE.dump(value)))),
    ):
        assert found["id"] == value["id"]
        assert (found["at"] == value["at"]).all()


@given(VALUES)
def test_bodies_without_streams(value: Any) -> None:
    """A communicator's shorter way makes and reads the same bodies as streams do."""
    whole = bytes(PICKLE.encode(value))
    assert whole == bytes(parts(PICKLE.dump(value)))
    for found in (PICKLE.decode(whole), PICKLE.decode(bytearray(whole)), PICKLE.load(Stream.frombuffer(whole))):
        assert found == value


def test_the_memory_of_arrays_is_not_copied() -> None:
    """A large array is sent from its own memory, and refers to the memory that it was received into."""
    array = np.arange(BIG)
    tracemalloc.start()
    stream = PICKLE.dump(["head", array])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20_000
    assert any(np.shares_memory(np.frombuffer(view, "u1"), array) for view in stream.views)

    memory = bytearray(bytes(stream))
    tracemalloc.start()
    _, found = PICKLE.load(Stream.frombuffer(memory))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20_000
    assert np.shares_memory(found, np.frombuffer(memory, "u1"))
    assert found.flags.writeable
    assert (found == array).all()


def test_large_bytes_are_not_copied_on_sending() -> None:
    """A large bytes object is sent from where it is."""
    data = bytes(BIG)
    assert any(view.obj is data for view in PICKLE.dump(["head", data]).views)


def test_an_array_outlives_its_stream() -> None:
    """What was loaded stays when the stream is closed."""
    with received(PICKLE.dump(np.arange(BIG))) as stream:
        found = PICKLE.load(stream)
    assert found[-1] == BIG - 1


# ---- What is let in


def test_nothing_of_the_program_is_let_in_by_default() -> None:
    """A class that is not let in is an error of pickle's and of redpoll's that says how to let it in; so is a function."""
    for value, name in ((Job("a"), JOB), (len, "builtins.len")):
        with pytest.raises(UnpicklingError) as caught:
            turned(value)
        assert isinstance(caught.value, pickle.UnpicklingError)
        assert isinstance(caught.value, DecodeError)
        assert f"{name} is not allowed" in str(caught.value)
        assert f'PickleSerializer(allow=["{name}"]) allows it' in str(caught.value)


def test_allow_by_name() -> None:
    """A class that is named comes in, and no other does; what it returns can be asked as well."""
    allow = PickleSerializer.allow_by_name(JOB, "http.HTTPStatus")
    assert allow(JOB)
    assert not allow(f"{JOB}.Inner")
    assert not allow(JOB[:-1])
    serializer = PickleSerializer(allow=allow)
    assert turned(Job("a"), serializer) == Job("a")
    with pytest.raises(UnpicklingError, match=r"builtins\.len is not allowed"):
        turned([Job("a"), len], serializer)


@pytest.mark.parametrize("module", ["builtins", "uuid", "os.path"])
def test_modules_are_refused(module: str) -> None:
    """A bare module name is refused with the reason, when it is given."""
    with pytest.raises(ConfigError, match=r"is a module: .* down to os\.system") as caught:
        PickleSerializer.allow_by_name(module)
    assert caught.value.hint == f'name what you mean: "{module}.SomeClass"'


def test_names_are_exact() -> None:
    """A name that is let in does not let in what is below it, the way that net-queue's could be left by."""
    serializer = PickleSerializer(allow=PickleSerializer.allow_by_name("uuid.UUID", JOB))
    for module, name in (
        ("uuid", "os.system"),
        ("uuid", "UUID.__init__.__globals__"),
        ("uuid.UUID", "__init__"),
        ("uuid", "uuid4"),
        (__name__, "Job.Inner"),
        (__name__, "Job.__init__"),
        (f"{__name__}.Job", "Inner"),
    ):
        with heard() as acts, pytest.raises(UnpicklingError, match="is not allowed"):
            serializer.load(Stream.frombuffer(body(call(named(module, name), text("x")))))
        assert not acts


def test_a_function_of_ones_own() -> None:
    """`allow` is asked with the full name of each global, and never for what is below one, nor are modules given."""
    asked: list[str] = []

    def allow(name: str) -> bool:
        asked.append(name)
        return True

    serializer = PickleSerializer(allow=allow)
    assert turned([Job("a"), decimal.ROUND_UP, uuid.UUID(int=1)], serializer)[0] == Job("a")
    assert set(asked) == {JOB, "copyreg.__newobj__"} or set(asked) == {JOB}
    asked.clear()
    for module, name in (("uuid", "os.system"), (__name__, "Job.Inner")):
        with pytest.raises(UnpicklingError, match="is not allowed"):
            serializer.load(Stream.frombuffer(body(named(module, name))))
    assert not asked
    with pytest.raises(UnpicklingError, match=r"uuid\.os is not allowed"):
        serializer.load(Stream.frombuffer(body(named("uuid", "os"))))


def test_what_allow_raises() -> None:
    """A function that raises lets nothing in, and its exception is the cause."""

    def allow(name: str) -> bool:
        raise RuntimeError(f"no {name}")

    with pytest.raises(UnpicklingError, match=f"no {JOB}") as caught:
        turned(Job("a"), PickleSerializer(allow=allow))
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_list_lets_in_classes_within_classes() -> None:
    """The list of classes and names of redpoll's own serializer is taken too, for what has no name that could be asked."""
    found = turned([Job("a"), Job.Inner()], PickleSerializer(allow=[JOB, Job.Inner]))
    assert found[0] == Job("a")
    assert type(found[1]) is Job.Inner
    for wrong in (JOB, uuid, [uuid], 5):
        with pytest.raises(ConfigError, match="allow="):
            PickleSerializer(allow=wrong)  # type: ignore[arg-type]


# ---- Persistent ids


def test_persistent_ids() -> None:
    """`dump` gives ids for what goes by reference, `load` finds it again."""
    here = object()
    serializer = PickleSerializer(dump=lambda obj: "here" if obj is here else None, load={"here": here}.__getitem__)
    assert turned(["a", here], serializer) == ["a", here]


def test_ids_that_nobody_finds() -> None:
    """Without `load`, or where it raises, an id is an error of pickle's."""
    here = object()
    dumped = PickleSerializer(dump=lambda obj: "here" if obj is here else None).dump(here)
    for serializer in (PICKLE, PickleSerializer(load={}.__getitem__)):
        with pytest.raises(pickle.UnpicklingError):
            serializer.load(received(dumped.copy()))


def test_ids_are_functions() -> None:
    """What is no function is found when it is given."""
    for name in ("dump", "load"):
        with pytest.raises(ConfigError, match=f"{name}=5: is no function"):
            PickleSerializer(**{name: 5})  # type: ignore[arg-type]


# ---- What is wrong


class Fails:
    """What cannot be pickled."""

    def __reduce__(self) -> Any:
        raise RuntimeError("not this one")


def test_what_cannot_be_pickled() -> None:
    """Whatever is against it is an error of pickle's and of redpoll's with the cause."""
    for value in (lambda: None, (each for each in "a"), types, Fails()):
        with pytest.raises(PicklingError) as caught:
            PICKLE.dump(value)
        assert isinstance(caught.value, pickle.PicklingError)
        assert isinstance(caught.value, EncodeError)
        assert caught.value.__cause__ is not None


@given(VALUES, st.data())
def test_what_is_cut_short(value: Any, drawn: st.DataObject) -> None:
    """An empty body, and one that is cut anywhere or has more behind it, is an error of pickle's."""
    whole = bytes(parts(PICKLE.dump([value, bytes(3000)])))
    cut = whole[: drawn.draw(st.integers(0, len(whole) - 1))]
    for damaged in (b"", cut, whole + b"\0"):
        with pytest.raises(pickle.UnpicklingError):
            PICKLE.load(Stream.frombuffer(damaged))


def test_an_error_is_prefixed_once() -> None:
    """The error of a value that the wire cannot carry has its problem and hint once, as of redpoll's serializer."""
    view = memoryview(b"abcdef")[::2]
    with pytest.raises(PicklingError) as caught:
        PickleSerializer().dump(view)
    with pytest.raises(EncodeError) as other:
        serializers.PickleSerializer().encode(view)
    assert str(caught.value) == str(other.value)


def test_errors_can_be_pickled() -> None:
    """The errors travel between processes as redpoll's others do."""
    for error in (UnpicklingError("pickle", "no", "hint"), PicklingError("pickle", "no")):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert str(again) == str(error)


# ---- Attacks


@pytest.fixture
def acts() -> Iterator[list[str]]:
    """What is done meanwhile."""
    with heard() as seen:
        yield seen


@pytest.mark.parametrize("name", EVERYTHING)
def test_attacks(name: str, acts: list[str]) -> None:
    """A pickle that was written to do harm is an error of pickle's, and does nothing."""
    attack = EVERYTHING[name]
    acts.clear()
    tracemalloc.start()
    try:
        with pytest.raises(pickle.UnpicklingError):
            PICKLE.load(Stream.frombuffer(attack))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert not acts
    assert peak < 250 * len(attack) + 2_000_000


def test_attacks_with_other_names_let_in(acts: list[str]) -> None:
    """So is each where the documented names are let in as well."""
    serializer = PickleSerializer(allow=PickleSerializer.allow_by_name(*DOCUMENTED))
    for name, attack in EVERYTHING.items():
        acts.clear()
        with pytest.raises(pickle.UnpicklingError):
            serializer.load(Stream.frombuffer(attack))
        assert not acts, name


@pytest.mark.parametrize("value", [np.arange(5), [np.arange(5)]], ids=["alone", "in a list"])
def test_arrays_are_read_by_a_program_that_has_not_imported_numpy(value: Any) -> None:
    """It is imported then, where it is installed: net-queue's users need not do so either."""
    program = (
        "import sys\n"
        "from redpoll.nq import PickleSerializer, Stream\n"
        "assert 'numpy' not in sys.modules\n"
        "print(PickleSerializer().load(Stream.frombuffer(sys.stdin.buffer.read())))\n"
    )
    body = bytes(parts(PickleSerializer().dump(value)))
    done = subprocess.run([sys.executable, "-c", program], input=body, capture_output=True, env=environment())
    assert done.stdout.decode().strip() == str(value), done.stderr.decode()
