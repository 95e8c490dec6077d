from __future__ import annotations

import copyreg
import enum
import gc
import pickle
import sys
import tracemalloc
import uuid
import weakref
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from redpoll.errors import DecodeError
from redpoll.serializers import PickleSerializer
from redpoll.serializers.pickling.reading import RefusedNameError, read
from tests.serializers.pickling.acts import heard
from tests.serializers.pickling.attacks import ARRAYS, ATTACKS
from tests.serializers.pickling.streams import body, call, named, number, ours, raw, text

EVERYTHING = {**ATTACKS, **ARRAYS}


@pytest.fixture
def acts() -> Iterator[list[str]]:
    """The observed actions: files, processes, imports, code."""
    with heard() as seen:
        yield seen


class Color(enum.Enum):
    RED = 1


class Job:
    """The names that a program allows."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.__dict__ == self.__dict__

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("name", EVERYTHING)
@pytest.mark.parametrize("allow", [(), (Job, "decimal.Context")], ids=["default", "with more let in"])
def test_attacks(name: str, allow: Any, acts: list[str]) -> None:
    """A pickle that was written to do harm is a DecodeError, and does nothing."""
    serializer = PickleSerializer(allow)
    acts.clear()
    with pytest.raises(DecodeError) as caught:
        serializer.decode(EVERYTHING[name])
    assert not acts
    assert caught.value.serializer == "pickle"


def test_attacks_take_little_memory() -> None:
    """No attack makes the receiver use much more memory than the size of the message."""
    serializer = PickleSerializer()
    for name, attack in EVERYTHING.items():
        tracemalloc.start()
        with pytest.raises(DecodeError):
            serializer.decode(attack)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 250 * len(attack) + 2_000_000, name


@pytest.mark.parametrize("opcode", [b"\x8f", b"}", b"]"], ids=["sets", "dicts", "lists"])
def test_empty_containers_are_the_dearest(opcode: bytes) -> None:
    """A byte of a stream makes at most an empty set."""
    sent = body(b"](" + opcode * 20_000 + b"e")
    tracemalloc.start()
    value = PickleSerializer().decode(sent)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(value) == 20_000
    assert peak < 250 * len(sent)


def test_nothing_is_copied_again_and_again() -> None:
    """A part of a message can be put into one value, not into as many as there is room to ask for."""
    once = b"\x80\x05B" + (10_000).to_bytes(4, "little") + bytes(10_000) + b"\x94"
    made = ours("array", text("b"), b"K\x01", b"\x88", b"h\x00")
    assert len(PickleSerializer().decode(raw(once + made + b"."))) == 10_000
    with pytest.raises(DecodeError, match="expands to too many times"):
        PickleSerializer().decode(raw(once + b"](" + made * 3 + b"e."))


def test_what_was_refused_is_named() -> None:
    """The error names what was asked for, and the very `allow` that would let it in."""
    with pytest.raises(DecodeError) as caught:
        PickleSerializer().decode(body(named("decimal", "Context")))
    assert str(caught.value) == (
        "pickle cannot decode: decimal.Context is not allowed "
        '(pickle(allow=["decimal.Context"]) allows it, for every peer that can send to this program)'
    )


def test_what_is_let_in() -> None:
    """The entry that the error proposes allows it."""
    sent = PickleSerializer().encode(Job(5))
    with pytest.raises(DecodeError) as caught:
        PickleSerializer().decode(bytes(sent))
    assert caught.value.hint
    name = caught.value.hint.partition('["')[2].partition('"]')[0]
    assert PickleSerializer(allow=[name]).decode(bytes(sent)) == Job(5)
    assert PickleSerializer(allow=[Job]).decode(bytes(sent)) == Job(5)


def test_a_name_does_not_let_in_what_is_below() -> None:
    """Neither a class nor its module is a way to what they hold."""
    serializer = PickleSerializer(allow=["uuid.UUID"])
    for module, name in (("uuid", "UUID.__init__"), ("uuid", "os"), ("uuid", "UUID2"), ("uui", "d.UUID")):
        with pytest.raises(DecodeError, match="is not allowed"):
            serializer.decode(body(named(module, name)))
    assert serializer.decode(body(named("uuid", "UUID"))) is uuid.UUID


def test_a_module_is_never_let_in() -> None:
    """A text that turns out to name a module lets nothing in."""
    with pytest.raises(DecodeError, match="is not allowed"):
        PickleSerializer(allow=["os.path"[:2] + ".sys"]).decode(body(named("os", "sys")))


def test_the_state_of_a_class_is_not_set() -> None:
    """Only instances of allowed classes get a state: the class itself is not changed."""
    serializer = PickleSerializer(allow=[Job])
    job = named(Job.__module__, "Job")
    with pytest.raises(DecodeError):
        serializer.decode(
            body(call(named("redpoll.serializers.pickling.names", "state"), job, b"N}" + text("x") + b"Ns\x86"))
        )
    assert not hasattr(Job, "x")


def test_members_of_enums_have_no_state() -> None:
    """A member of an enum is shared: no pickle changes it, even if its class is allowed."""
    serializer = PickleSerializer([Color])
    member = call(named(__name__, "Color"), b"K\x01")
    assert serializer.decode(body(member)) is Color.RED
    with pytest.raises(DecodeError):
        serializer.decode(body(ours("state", member, b"}" + text("x") + b"Ns")))
    assert not hasattr(Color.RED, "x")


class Slotted:
    """Has a slot, and what pickle sets there."""

    __slots__ = ("size",)

    def __init__(self, size: int) -> None:
        self.size = size


class JobError(Exception):
    """Has a note, which is an attribute that pickle carries."""


class Own:
    """Sets its state itself."""

    def __setstate__(self, state: Any) -> None:
        self.taken = state


def state(name: str, *attributes: bytes) -> bytes:
    """Push an instance, with its state set by these opcodes."""
    module = "redpoll.serializers.pickling.names"
    made = named(__name__, name) + (b")" if name != "Slotted" else b"K\x01\x85") + b"\x81\x94"
    return made + call(named(module, "state"), b"h\x00", *attributes) + b"0"


@pytest.mark.parametrize("name", ["__class__", "__dict__", "__setstate__", "__array_interface__", "__deepcopy__"])
@pytest.mark.parametrize("kind", [Job, Slotted, JobError])
def test_attributes_of_python_are_not_set(kind: type, name: str) -> None:
    """A pickle gives an instance neither another class nor what Python and NumPy look for in it."""
    serializer = PickleSerializer([Job, Slotted, JobError])
    attribute = b"}" + text(name) + named(__name__, "Job") + b"s"
    for each in (attribute, b"N" + attribute + b"\x86"):
        with pytest.raises(DecodeError, match=rf"the state of {kind.__qualname__} sets {name}"):
            serializer.decode(body(state(kind.__qualname__, each)))


def test_states_that_are_set() -> None:
    """Attributes, slots and notes arrive, and a class that sets its state itself gets all of it."""
    serializer = PickleSerializer([Job, Slotted, JobError, Own])
    assert serializer.decode(bytes(serializer.encode(Slotted(5)))).size == 5
    failed = JobError("late")
    failed.add_note("by an hour")
    assert serializer.decode(bytes(serializer.encode(failed))).__notes__ == ["by an hour"]
    own = serializer.decode(body(state("Own", b"}" + text("__class__") + b"Ns")))
    assert own.taken == {"__class__": None}
    with pytest.raises(DecodeError, match="the state of Job is not a dict"):
        serializer.decode(body(state("Job", text("x"))))


def test_ids_are_weighed() -> None:
    """An id that would take too long to look up is rejected before."""
    bomb = b")\x94" + b"".join(b"h" + bytes((index,)) + b"h" + bytes((index,)) + b"\x86\x94" for index in range(60))
    serializer = PickleSerializer(persistent_load={((), ()): 2}.get)
    assert serializer.decode(body(b")\x94h\x00\x86Q")) == 2
    with pytest.raises(DecodeError, match="too long to hash"):
        serializer.decode(body(b"](" + bomb, b"Qe"))


def test_long_names_are_cut() -> None:
    """A stranger does not fill the log with a name."""
    with pytest.raises(DecodeError) as caught:
        PickleSerializer().decode(body(named("m" * 100_000, "n" * 100_000)))
    assert len(str(caught.value)) < 1000


def test_what_was_loaded_elsewhere_by_number_is_not_found() -> None:
    """The table of numbers that other unpicklers filled is no way around the names."""
    copyreg.add_extension("uuid", "UUID", 77)
    try:
        assert pickle.loads(b"\x80\x02\x82\x4d.") is uuid.UUID
        with pytest.raises(DecodeError, match="opcode EXT1"):
            PickleSerializer().decode(body(b"\x82\x4d"))
    finally:
        copyreg.remove_extension("uuid", "UUID", 77)


def test_values_come_without_the_name_being_let_in() -> None:
    """A class of the table is put together from its parts; the class itself is not handed out."""
    assert PickleSerializer().decode(body(ours("UUID", number(5)))) == uuid.UUID(int=5)
    with pytest.raises(DecodeError, match=r"uuid\.UUID is not allowed"):
        PickleSerializer().decode(body(named("uuid", "UUID")))


def test_a_refused_name_is_kept() -> None:
    """The error has the name as a field."""
    with pytest.raises(RefusedNameError) as caught:
        read(body(named("os", "system")), {}, None)
    assert caught.value.name == "os.system"


def test_arrays_may_be_written_to_in_the_end() -> None:
    """The pickle cannot write into an array; its receiver can."""
    made = PickleSerializer().decode(
        body(ours("numpy_ndarray", text("|u1"), b"(K\x02t", text("C"), b"\x96" + (2).to_bytes(8, "little") + b"ab"))
    )
    made[0] = 1
    assert made.tolist() == [1, ord("b")]


def test_nothing_is_left_to_the_collector() -> None:
    """The memory of a message goes with the last reference to its value, not with the next collection."""
    value: Any = PickleSerializer().decode(
        bytearray(bytes(PickleSerializer().encode([np.zeros(5000), uuid.UUID(int=1)])))
    )
    gone = weakref.ref(value[0])
    gc.disable()
    try:
        del value
        assert gone() is None
    finally:
        gc.enable()


def test_large_bytes_are_copied_once() -> None:
    """Beside the body, the receiver holds the bytes object and no more."""
    sent = bytearray(bytes(PickleSerializer().encode(bytes(8_000_000))))
    tracemalloc.start()
    value = PickleSerializer().decode(memoryview(sent))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(value) == 8_000_000
    assert peak < 8_400_000


def test_numpy_is_not_imported() -> None:
    """An array for a program without NumPy is rejected with the remedy."""
    import subprocess

    from tests.cli.support import environment

    program = (
        "import sys; from redpoll.serializers import pickle\n"
        "from redpoll.errors import DecodeError\n"
        "try: pickle.decode(sys.stdin.buffer.read())\n"
        "except DecodeError as error: print(error)\n"
        "assert 'numpy' not in sys.modules"
    )
    sent = bytes(PickleSerializer().encode(np.zeros(3)))
    done = subprocess.run([sys.executable, "-c", program], input=sent, capture_output=True, env=environment())
    assert done.returncode == 0, done.stderr
    assert b"has not imported numpy" in done.stdout


def test_a_view_is_of_the_part() -> None:
    """A part is not copied: writes to the view are in the body."""
    sent = bytearray(body(ours("memoryview", b"\x97"), parts=[b"abc"]))
    PickleSerializer().decode(sent)[0] = ord("X")
    assert sent.endswith(b"Xbc")


@pytest.mark.parametrize("value", [range(3), slice(3), ..., Path("x"), ValueError("x")], ids=repr)
def test_what_acts_or_grows_is_no_value(value: Any) -> None:
    """Ranges, slices, `...`, paths that act on files, and exceptions are refused unless they are allowed."""
    serializer = PickleSerializer()
    with pytest.raises(DecodeError, match="is not allowed"):
        serializer.decode(memoryview(bytes(serializer.encode(value))))


def test_a_view_arrives_as_its_bytes() -> None:
    """A memoryview of numbers arrives as one of plain bytes."""
    serializer = PickleSerializer()
    numbers = array("i", [1, 2])
    read = serializer.decode(memoryview(bytes(serializer.encode(memoryview(numbers)))))
    assert (type(read), read.format, bytes(read)) == (memoryview, "B", numbers.tobytes())
