"""Writing of pickles that `reading` reads."""

from __future__ import annotations

import copyreg
import pickle
import sys
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any, Final

from redpoll.serializers.flat import flatten
from redpoll.serializers.parts import Encoded, gather
from redpoll.serializers.pickling import alone, arrays, frame
from redpoll.serializers.pickling.names import named
from redpoll.serializers.pickling.values import BY_CLASS

if TYPE_CHECKING:
    from redpoll.serializers.base import Buffer

__all__ = ["APART", "write"]

#: Minimum memory of an array that is put behind the stream, where it is not copied, in bytes.
APART: Final = 2048

_PROTOCOL: Final = 5
_GLOBALS = (type, FunctionType, BuiltinFunctionType)


def write(obj: Any, persistent_id: Callable[[Any], Any] | None) -> Encoded:
    """Return the body for a value.

    Args:
        obj: Anything that can be pickled.
        persistent_id: Returns the id of an object that is sent by its id alone, None for all others.

    Raises:
        Exception: As raised by pickle, or by the class of a value.
    """
    if persistent_id is None:
        pieces = alone.write(obj)
        if pieces is not None:
            return gather(pieces)
    stream: list[Buffer] = []
    writer = _Writer(_Sink(stream)) if persistent_id is None else _WriterById(_Sink(stream), persistent_id)
    writer.dump(obj)
    return gather(frame.join(stream, writer.parts.apart), held=writer.parts.copied)


class _Sink:
    """Collects the pieces of a stream; large bytes objects are not copied."""

    __slots__ = ("_pieces",)

    def __init__(self, pieces: list[Buffer]) -> None:
        self._pieces = pieces

    def write(self, data: Any) -> int:
        """Add a piece."""
        self._pieces.append(data if type(data) is bytes else memoryview(data).cast("B"))
        return len(data)


class _Parts:
    """The parts behind the stream. It does not refer to the writer, which refers to it: there is no cycle to collect.

    Attributes:
        apart: Memory of each part.
        views: Views of parts to come, by the id of the PickleBuffer.
        copied: Bytes that were copied.
    """

    __slots__ = ("apart", "copied", "views")

    def __init__(self) -> None:
        self.apart: list[memoryview] = []
        self.views: dict[int, memoryview] = {}
        self.copied = 0

    def take(self, part: pickle.PickleBuffer) -> bool:
        """Put a part behind the stream; return True if it is too small for that."""
        view = self.views.pop(id(part), None)
        if view is None:
            view = part.raw()
        if view.nbytes < APART:
            return True
        self.apart.append(view)
        return False


class _Writer(pickle.Pickler):
    """Reduces values by this package's tables, and all others by their own methods, without BUILD."""

    def __init__(self, file: _Sink) -> None:
        self.parts = _Parts()
        super().__init__(file, _PROTOCOL, fix_imports=False, buffer_callback=self.parts.take)

    def reducer_override(self, obj: Any) -> Any:
        """Reduce an object."""
        kind = type(obj)
        value = BY_CLASS.get(kind)
        if value is not None:
            taken = value.take(obj)
            if taken is not None:
                arguments, *items = taken
                return named(value.name), arguments, None, *items
        if isinstance(obj, _GLOBALS):
            return NotImplemented
        if kind is memoryview:
            return named("memoryview"), (self._memory(obj),)
        np = sys.modules.get("numpy")
        found = None if np is None else arrays.take(np, obj)
        if found is not None:
            name, arguments, copied = found
            self.parts.copied += copied
            return named(name), arguments
        return _without_build(obj, kind)

    def _memory(self, view: memoryview) -> Any:
        flat = flatten("pickle", view)
        if not isinstance(flat, memoryview):
            return flat
        part = pickle.PickleBuffer(flat)
        # Not obtained from the PickleBuffer: CPython 3.11 crashes when the collector finds such a view.
        self.parts.views[id(part)] = flat
        return part


class _WriterById(_Writer):
    """A writer with ids in place of some objects; a separate class, since the method is called for each object."""

    def __init__(self, file: _Sink, persistent_id: Callable[[Any], Any]) -> None:
        super().__init__(file)
        self._id = persistent_id

    def persistent_id(self, obj: Any) -> Any:
        """Return the id of an object, None for most."""
        return self._id(obj)


def _without_build(obj: Any, kind: type) -> Any:
    """Reduce an object by its own class, with its state set by the reader instead of an opcode."""
    reduce = copyreg.dispatch_table.get(kind)
    reduced = obj.__reduce_ex__(_PROTOCOL) if reduce is None else reduce(obj)
    if type(reduced) is not tuple or len(reduced) < 3 or reduced[2] is None or len(reduced) > 5:
        return reduced
    items = (*reduced[3:], None, None)[:2]
    return *reduced[:3], *items, named("state")
