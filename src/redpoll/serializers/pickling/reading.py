"""Reading a pickle that anybody may have sent."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from redpoll.serializers.pickling import alone, arrays, frame, names, opcodes
from redpoll.serializers.pickling.allow import Allowed, entry
from redpoll.serializers.pickling.values import BY_CLASS, BY_NAME, Value

if TYPE_CHECKING:
    from redpoll.serializers.base import Buffer

__all__ = ["RefusedNameError", "read"]

_ARRAYS: Mapping[str, Callable[..., Any]] = {
    "numpy_ndarray": arrays.array,
    "numpy_scalar": arrays.scalar,
    "numpy_objects": arrays.objects,
    "numpy_dtype": arrays.dtype,
}

# Of a name that a stranger chose.
_SHOWN = 100

_TOO_MUCH = "it makes more of its parts than it has"

# Up to this many bytes a stream is copied, to be read by code in C.
_COPIED = 64 * 1024


class RefusedNameError(ValueError):
    """A name that is not let in.

    Attributes:
        name: Module and name.
        hint: What would let it in.
    """

    def __init__(self, module: str, name: str) -> None:
        module, name = module[:_SHOWN], name[:_SHOWN]
        super().__init__(f"{module}.{name} is not let in")
        self.name = f"{module}.{name}"
        self.hint = f"pickle({entry(module, name)}) lets it in, for whoever may send to this program"


def read(body: Buffer, allowed: Allowed, persistent_load: Callable[[Any], Any] | None) -> Any:
    """The value in a body.

    Args:
        body: What a peer sent.
        allowed: The names that are let in beside the values of the standard library and NumPy.
        persistent_load: Finds what was sent by its id; None: nothing was.

    Raises:
        RefusedNameError: It asks for another name.
        ValueError: It is not what the writer writes. Anything else comes from a class that was let in.
    """
    view = memoryview(body)
    if bytes(view[:4]) == alone.MAGIC:
        return alone.read(view)
    stream, parts = frame.split(view)
    opcodes.check(stream)
    file: Any = io.BytesIO(stream) if len(stream) <= _COPIED else _Stream(stream)
    reader = _Reader(file, allowed, parts, len(body))
    if persistent_load is not None:
        reader.persistent_load = persistent_load  # type: ignore[method-assign]
    try:
        value = reader.load()
        reader.finish()
        return value
    finally:
        # It refers to calls that refer to it, and to all that it made: the memory would be held until a collection.
        reader.memo.clear()


class _Reader(pickle.Unpickler):
    """Puts a value together, and charges what it costs against what was sent."""

    def __init__(self, file: Any, allowed: Allowed, parts: list[memoryview], size: int) -> None:
        self._parts = iter(parts)
        super().__init__(file, fix_imports=False, buffers=self._parts)
        self._allowed = allowed
        # A part, a text or a number may be remembered, and given to one constructor after the other.
        self._left = size
        self._arrays: list[Any] = []
        self._frozen: list[Any] = []

    def find_class(self, module: str, name: str) -> Any:
        """What stands for a name: of ours a call that checks its arguments, else what was let in by this very name."""
        if module == names.MODULE:
            value = BY_NAME.get(name)
            if value is not None:
                return partial(self._make, value)
            if name in _ARRAYS:
                return partial(self._array, _ARRAYS[name])
            if name == "memoryview":
                return self._view
            if name == "state":
                return self._set_state
        found = self._allowed.get((module, name), self)
        if found is self:
            raise RefusedNameError(module, name)
        if found is None:
            found = super().find_class(module, name)
            if isinstance(found, ModuleType):
                raise RefusedNameError(module, name)
        return found

    def finish(self) -> None:
        """Look that all parts were taken, and that text is text; let the arrays be written to.

        Raises:
            ValueError: One was not, or there is text that is none.
        """
        if next(self._parts, None) is not None:
            raise ValueError("it does not take all of its parts")
        # Not as they are made: the pickle can write to the memory of one, by a bytearray or a view, until it ends.
        for each in self._arrays:
            arrays.check_text(each)
        for each in self._frozen:
            each.flags.writeable = True

    def _charge(self, arguments: tuple[Any, ...]) -> None:
        for each in arguments:
            kind = type(each)
            if kind is int:
                self._left -= each.bit_length() // 8
            elif kind in _SIZED:
                self._left -= len(each)
            elif kind is tuple:
                self._charge_items(each)
        if self._left < 0:
            raise ValueError(_TOO_MUCH)

    def _charge_items(self, items: tuple[Any, ...]) -> None:
        """Charge a shape, or a description of a dtype, whose tuples may stand in one another many times."""
        self._left -= len(items)
        if self._left < 0:
            raise ValueError(_TOO_MUCH)
        for each in items:
            if type(each) is tuple:
                self._charge_items(each)

    def _make(self, value: Value, *arguments: Any) -> Any:
        self._charge(arguments)
        if not len(value.kinds) - value.missing <= len(arguments) <= len(value.kinds):
            raise ValueError(f"a {value.name} is not made of {len(arguments)} values")
        for each, kinds in zip(arguments, value.kinds, strict=False):
            if kinds and type(each) not in kinds:
                raise ValueError(f"a {value.name} is not made of {type(each).__name__}")
        return value.make(*arguments)

    def _array(self, make: Callable[..., Any], *arguments: Any) -> Any:
        self._charge(arguments)
        made = make(*arguments)
        if make is arrays.array:
            self._arrays.append(made)
        # Until all is read: else the pickle could have lists put into it, each again and again.
        if make is not arrays.dtype and make is not arrays.scalar and made.flags.writeable:
            made.flags.writeable = False
            self._frozen.append(made)
        return made

    def _view(self, data: Any) -> memoryview:
        self._charge((data,))
        if type(data) not in _BYTES:
            raise ValueError("a memoryview is not made of that")
        return memoryview(data)

    def _set_state(self, made: Any, state: Any) -> None:
        """Do what pickle's BUILD does, to instances of what was let in, and to nothing else."""
        kind = type(made)
        found = self._allowed.get((kind.__module__, kind.__qualname__), self)
        # A value of ours has no state; a member of an enum is everybody's.
        if found is self or (found is not None and found is not kind) or kind in BY_CLASS or isinstance(made, Enum):
            raise RefusedNameError(kind.__module__, kind.__qualname__)
        setter = getattr(made, "__setstate__", None)
        if setter is not None:
            setter(state)
            return
        slots = None
        if type(state) is tuple and len(state) == 2:
            state, slots = state
        if state:
            made.__dict__.update(state)
        for name, each in slots.items() if slots else ():
            setattr(made, name, each)


_BYTES = frozenset((bytes, bytearray, memoryview))
_SIZED = _BYTES | {str, list}


class _Stream:
    """A stream to be read from where it is: a large bytes object in it is copied once, into itself."""

    __slots__ = ("_at", "_view")

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._at = 0

    def read(self, count: int) -> memoryview:
        """The next bytes."""
        start = self._at
        self._at = start + count
        return self._view[start : start + count]

    def readinto(self, buffer: Any) -> int:
        """Put the next bytes into a buffer."""
        found = self.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def readline(self) -> memoryview:
        """No opcode that is read asks for a line."""
        return self._view[:0]
