"""Writing a pickle that `reading` reads."""

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

#: The memory of arrays of at least this many bytes stands behind the stream, where it is not copied.
APART: Final = 2048

_PROTOCOL: Final = 5
_GLOBALS = (type, FunctionType, BuiltinFunctionType)


def write(obj: Any, persistent_id: Callable[[Any], Any] | None) -> Encoded:
    """The body for a value.

    Args:
        obj: Anything that can be pickled.
        persistent_id: Gives the id of what is sent by that alone, None for all else.

    Raises:
        Exception: Whatever pickle, or the class of a value in it, has against it.
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
    """Takes the pieces of a stream: large bytes as they are, not copied."""

    __slots__ = ("_pieces",)

    def __init__(self, pieces: list[Buffer]) -> None:
        self._pieces = pieces

    def write(self, data: Any) -> int:
        """Take a piece."""
        self._pieces.append(data if type(data) is bytes else memoryview(data).cast("B"))
        return len(data)


class _Parts:
    """What stands behind the stream. It does not refer to the writer, which refers to it: nothing has to be collected.

    Attributes:
        apart: The memory of each.
        views: Of some that are to come, by the id of what is taken for them.
        copied: Bytes of them that were copied.
    """

    __slots__ = ("apart", "copied", "views")

    def __init__(self) -> None:
        self.apart: list[memoryview] = []
        self.views: dict[int, memoryview] = {}
        self.copied = 0

    def take(self, part: pickle.PickleBuffer) -> bool:
        """Put a part behind the stream, or say that it is too small for that."""
        view = self.views.pop(id(part), None)
        if view is None:
            view = part.raw()
        if view.nbytes < APART:
            return True
        self.apart.append(view)
        return False


class _Writer(pickle.Pickler):
    """Takes values apart by our tables, and all others by their own ways, without BUILD."""

    def __init__(self, file: _Sink) -> None:
        self.parts = _Parts()
        super().__init__(file, _PROTOCOL, fix_imports=False, buffer_callback=self.parts.take)

    def reducer_override(self, obj: Any) -> Any:
        """How an object is taken apart."""
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
        # Not taken by way of the PickleBuffer: CPython 3.11 crashes when the collector finds such a view.
        self.parts.views[id(part)] = flat
        return part


class _WriterById(_Writer):
    """The same, with ids in place of some objects: apart, as the question is asked for each object there is."""

    def __init__(self, file: _Sink, persistent_id: Callable[[Any], Any]) -> None:
        super().__init__(file)
        self._id = persistent_id

    def persistent_id(self, obj: Any) -> Any:
        """The id of an object, None for most."""
        return self._id(obj)


def _without_build(obj: Any, kind: type) -> Any:
    """How an object is taken apart by its own class, with its state set by our reader instead of an opcode."""
    reduce = copyreg.dispatch_table.get(kind)
    reduced = obj.__reduce_ex__(_PROTOCOL) if reduce is None else reduce(obj)
    if type(reduced) is not tuple or len(reduced) < 3 or reduced[2] is None or len(reduced) > 5:
        return reduced
    items = (*reduced[3:], None, None)[:2]
    return *reduced[:3], *items, named("state")
