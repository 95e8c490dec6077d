"""Reading of pickles from untrusted peers."""

from __future__ import annotations

import io
import pickle
import weakref
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from redpoll.serializers.pickling import alone, arrays, frame, names, nesting, opcodes
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

# Maximum characters shown of a peer's name.
_SHOWN = 100

_TOO_MUCH = "it expands to too many times its size"

# Maximum stream that is copied, in bytes, so that code in C reads it.
_COPIED = 64 * 1024


class RefusedNameError(ValueError):
    """A name is not allowed.

    Attributes:
        name: Module and name.
        hint: The entry of `allow` that would allow it.
    """

    def __init__(self, module: str, name: str) -> None:
        module, name = module[:_SHOWN], name[:_SHOWN]
        super().__init__(f"{module}.{name} is not allowed")
        self.name = f"{module}.{name}"
        self.hint = f"pickle({entry(module, name)}) allows it, for every peer that can send to this program"


def read(body: Buffer, allowed: Allowed, persistent_load: Callable[[Any], Any] | None) -> Any:
    """Return the value in a body.

    Args:
        body: Bytes from a peer.
        allowed: The allowed names, besides the values of the standard library and NumPy.
        persistent_load: Returns the object for an id; None if there are no ids.

    Raises:
        RefusedNameError: It uses another name.
        ValueError: The writer does not write such a body. Any other exception comes from an allowed class.
    """
    view = memoryview(body)
    if bytes(view[:4]) == alone.MAGIC:
        return alone.read(view)
    stream, parts = frame.split(view)
    opcodes.check(stream)
    file: Any = io.BytesIO(stream) if len(stream) <= _COPIED else _Stream(stream)
    builder = _Builder(allowed, len(body))
    left = iter(parts)
    reader = _Reader(file, builder, left)
    if persistent_load is not None:
        reader.persistent_load = persistent_load  # type: ignore[method-assign]
    try:
        value = reader.load()
        reader.memo.clear()
        builder.finish(left)
        return value
    except BaseException:
        builder.discard()
        raise
    finally:
        # An exception keeps this frame alive, but must not keep the reader's stack and memo.
        del reader


class _Reader(pickle.Unpickler):
    """Resolves the names in a pickle.

    No object that it creates refers to it: the garbage collector does not traverse its stack, so a pickle that fails
    with such a reference on the stack would never be freed.
    """

    def __init__(self, file: Any, builder: _Builder, parts: Iterator[memoryview]) -> None:
        super().__init__(file, fix_imports=False, buffers=parts)
        self._builder = builder

    def find_class(self, module: str, name: str) -> Any:
        """Resolve a name: to a call that checks its arguments, for the names of this package, or to an allowed object."""
        found = self._builder.find(module, name)
        if found is None:
            found = super().find_class(module, name)
            if isinstance(found, ModuleType):
                raise RefusedNameError(module, name)
        if isinstance(found, type):
            self._builder.kinds.add(found)
        return found


class _Builder:
    """Creates values from checked arguments, and charges their cost against the size of the message.

    Attributes:
        kinds: Allowed classes that were used.
    """

    __slots__ = ("_allowed", "_arrays", "_calls", "_frozen", "_held", "_left", "kinds")

    def __init__(self, allowed: Allowed, size: int) -> None:
        self._allowed = allowed
        # A part, a text or a number may be memoized, and passed to one constructor after the other.
        self._left = size
        self._arrays: list[Any] = []
        self._frozen: list[Any] = []
        self._held: list[Any] = []
        self._calls: list[weakref.ref[Any]] = []
        self.kinds: set[type] = set()

    def find(self, module: str, name: str) -> Any:
        """Resolve a name; return None for an allowed one that has to be imported.

        Raises:
            RefusedNameError: It is not allowed.
        """
        if module == names.MODULE:
            call = self._find_call(name)
            if call is not None:
                self._calls.append(weakref.ref(call))
                return call
        found = self._allowed.get((module, name), self)
        if found is self:
            raise RefusedNameError(module, name)
        return found

    def _find_call(self, name: str) -> Callable[..., Any] | None:
        value = BY_NAME.get(name)
        if value is not None:
            return partial(self._make, value)
        if name in _ARRAYS:
            return partial(self._array, _ARRAYS[name])
        return self._view if name == "memoryview" else self._set_state if name == "state" else None

    def finish(self, parts: Iterator[memoryview]) -> None:
        """Check what can only be checked at the end, and make the arrays writable.

        The memo has to be empty, so that only the value refers to objects.

        Args:
            parts: The parts that were not used.

        Raises:
            ValueError: There are some, the value contains a name that was not called, containers are nested too deeply,
                or an array has invalid text.
        """
        if next(parts, None) is not None:
            raise ValueError("some of its parts are unused")
        if any(call() is not None for call in self._calls):
            raise ValueError("it contains a name of this serializer that is not called")
        nesting.check(self._held, self.kinds)
        # Not when they are created: until the end the pickle can write to an array's memory, through a bytearray or a
        # view.
        for each in self._arrays:
            arrays.check_text(each)
        for each in self._frozen:
            each.flags.writeable = True

    def discard(self) -> None:
        """Take apart the objects of a rejected pickle."""
        nesting.empty(self._held)

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
        """Charge a shape, or a description of a dtype, whose tuples may be nested in each other many times."""
        self._left -= len(items)
        if self._left < 0:
            raise ValueError(_TOO_MUCH)
        for each in items:
            if type(each) is tuple:
                self._charge_items(each)

    def _make(self, value: Value, *arguments: Any) -> Any:
        self._charge(arguments)
        if not len(value.kinds) - value.missing <= len(arguments) <= len(value.kinds):
            raise ValueError(f"a {value.name} does not take {len(arguments)} values")
        for each, kinds in zip(arguments, value.kinds, strict=False):
            if kinds and type(each) not in kinds:
                raise ValueError(f"a {value.name} does not take {type(each).__name__}")
        made = value.make(*arguments)
        if value.held:
            self._held.append(made)
        return made

    def _array(self, make: Callable[..., Any], *arguments: Any) -> Any:
        self._charge(arguments)
        made = make(*arguments)
        if make is arrays.array:
            self._arrays.append(made)
        elif make is arrays.objects:
            self._held.append(made)
        # Read-only until the end: otherwise the pickle could put lists into it, each again and again.
        if make is not arrays.dtype and make is not arrays.scalar and made.flags.writeable:
            made.flags.writeable = False
            self._frozen.append(made)
        return made

    def _view(self, data: Any) -> memoryview:
        self._charge((data,))
        if type(data) not in _BYTES:
            raise ValueError("a memoryview does not take that")
        return memoryview(data)

    def _set_state(self, made: Any, state: Any) -> None:
        """Do what pickle's BUILD does, for instances of allowed classes only."""
        kind = type(made)
        found = self._allowed.get((kind.__module__, kind.__qualname__), self)
        # Values of this package have no state; a member of an enum is shared.
        if found is self or (found is not None and found is not kind) or kind in BY_CLASS or isinstance(made, Enum):
            raise RefusedNameError(kind.__module__, kind.__qualname__)
        setter = getattr(made, "__setstate__", None)
        # An exception's state is as pickle sets it, except that it uses setattr for all of it.
        if setter is not None and kind.__setstate__ is not _SET_EXCEPTION:
            setter(state)
            return
        slots = None
        if type(state) is tuple and len(state) == 2:
            state, slots = state
        for attributes in (state, slots):
            _check_attributes(kind, attributes)
        if setter is not None:
            setter(state)
        elif state:
            made.__dict__.update(state)
        for name, each in slots.items() if slots else ():
            setattr(made, name, each)


_SET_EXCEPTION: Any = BaseException.__setstate__


def _check_attributes(kind: type, attributes: Any) -> None:
    """Reject attributes that belong to Python or NumPy: `__class__` in a slot, `__array_interface__` anywhere."""
    if attributes is None or attributes is False:
        return
    if not isinstance(attributes, dict):
        raise ValueError(f"the state of {kind.__qualname__} is not a dict")  # noqa: TRY004 - not of a caller
    for name in attributes:
        if isinstance(name, str) and str.startswith(name, "__") and str.endswith(name, "__") and name != "__notes__":
            raise ValueError(f"the state of {kind.__qualname__} sets {name[:_SHOWN]}, which only its class may set")


_BYTES = frozenset((bytes, bytearray, memoryview))
_SIZED = _BYTES | {str, list}


class _Stream:
    """A stream that is read in place: a large bytes object in it is copied once, when it is created."""

    __slots__ = ("_at", "_view")

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._at = 0

    def read(self, count: int) -> memoryview:
        """Return the next bytes."""
        start = self._at
        self._at = start + count
        return self._view[start : start + count]

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes into a buffer."""
        found = self.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def readline(self) -> memoryview:
        """Return nothing: no accepted opcode reads a line."""
        return self._view[:0]
