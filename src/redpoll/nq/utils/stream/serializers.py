"""Serializers to and from streams: pickles, read by an allow-list, and data that is bytes already."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from redpoll.errors import ConfigError, DecodeError, EncodeError
from redpoll.nq.utils.stream.view import Stream
from redpoll.serializers import Buffer, Encoded, Parts, allow_by_name
from redpoll.serializers.flat import flatten
from redpoll.serializers.pickling.allow import collect
from redpoll.serializers.pickling.arrays import NoNumPyError
from redpoll.serializers.pickling.reading import RefusedNameError, read
from redpoll.serializers.pickling.writing import write

__all__ = [
    "BufferSerializer",
    "BytesSerializer",
    "PickleSerializer",
    "PicklingError",
    "StreamSerializer",
    "UnpicklingError",
]

_NAME = "pickle"


class PicklingError(EncodeError, pickle.PicklingError):
    """Something cannot be pickled; its cause says why."""


class UnpicklingError(DecodeError, pickle.UnpicklingError):
    """The data names something that is not allowed, is not a pickle of `PickleSerializer`, or is damaged."""


class PickleSerializer:
    """Pickles Python's own values, NumPy arrays, and objects of the classes that `allow` names.

    It is `redpoll.serializers.PickleSerializer` with the interface of net-queue's serializer; see there for what is allowed
    by default, the risks of reading a stranger's pickle, and what is copied. Each reads the pickles of the other.
    net-queue's serializer allows everything without `allow`.
    """

    def __init__(
        self,
        allow: Callable[[str], Any] | Iterable[Any] | None = None,
        dump: Callable[[Any], Any] | None = None,
        load: Callable[[Any], Any] | None = None,
    ) -> None:
        """Choose what to allow.

        Args:
            allow: A function that is called with the full name, "module.name", of each further class or function that a
                pickle names, and returns whether to allow it: a peer may then call it with any arguments, and give its
                instances any state. `allow_by_name` makes one. It is not called for nested names, such as a class
                within a class. A list of classes, functions and names, as redpoll's serializer takes, can contain those.
                None (default): nothing further.
            dump: Returns the id of an object that is sent by its id alone, and None for others (default None: no ids).
            load: Returns the object with an id, or raises; any peer may have sent the id (default None: a
                pickle with ids is an error).

        Raises:
            ConfigError: `allow` lists a module, or an object without a name; an argument is not callable.
        """
        for name, function in {"dump": dump, "load": load}.items():
            if function is not None and not callable(function):
                raise ConfigError(name, function, "is no function")
        if isinstance(allow, str):
            raise ConfigError("allow", allow, "is a name", f"PickleSerializer.allow_by_name({allow!r})")
        self._allowed = _Asked(allow) if callable(allow) else collect(() if allow is None else allow)
        self._dump = dump
        self._load = load

    @staticmethod
    def allow_by_name(*names: str) -> Callable[[str], bool]:
        """Return an `allow` function for exact names.

        Args:
            names: "module.name", where the class or function was defined. Nested names are not allowed by it, and
                neither is a whole module, since that leads to everything that the module imports.

        Raises:
            ConfigError: A name is that of a module, or does not have this form.
        """
        exact = frozenset(allow_by_name(*names))
        return exact.__contains__

    def dump(self, data: Any) -> Stream:
        """Return a pickle of `data`. Large arrays, memoryviews and bytes in it are not copied.

        They must not change until the put is done.

        Raises:
            PicklingError: Something in `data` cannot be pickled.
        """
        encoded = self.encode(data)
        stream = Stream()
        if isinstance(encoded, Parts):
            stream.writeviews(encoded.pieces)
            stream._held = encoded.held - sum(len(each) for each in encoded.pieces if type(each) is bytes)
        else:
            stream.writeview(encoded)
        return stream

    def load(self, data: Stream) -> Any:
        """Read the pickle in a stream, which is empty afterwards. Arrays refer to the memory of the stream.

        Raises:
            UnpicklingError: The pickle names something that is not allowed (the error tells which `allow` would permit
                it), was not written by this serializer, or is damaged; or an allowed class raised.
        """
        return self.decode(data.toview())

    def encode(self, data: Any) -> Encoded:
        """Same as `dump`, but return the body of a message; a communicator calls it."""
        try:
            return write(data, self._dump)
        except EncodeError as error:
            raise PicklingError(error.serializer, error.problem, error.hint) from error
        except Exception as error:
            raise PicklingError(_NAME, str(error) or type(error).__name__) from error

    def decode(self, data: Buffer) -> Any:
        """Same as `load`, for the body of a message."""
        body = memoryview(bytearray(data)) if type(data) is bytes else memoryview(data)
        # Arrays that were writable are writable again.
        if body.readonly:
            body = memoryview(bytearray(body))
        try:
            return self._read(body)
        except RefusedNameError as error:
            raise UnpicklingError(_NAME, str(error), error.hint.replace("pickle", "PickleSerializer", 1)) from error
        except Exception as error:
            raise UnpicklingError(_NAME, str(error) or type(error).__name__) from error

    def _read(self, body: memoryview) -> Any:
        try:
            return read(body, self._allowed, self._load)
        except NoNumPyError:
            # As with net-queue, arrays are read even if NumPy was not imported before.
            if find_spec("numpy") is None:
                raise
            import_module("numpy")
            return read(body, self._allowed, self._load)


class _Asked(Mapping[tuple[str, str], Any]):
    """An allow-list that is a function."""

    __slots__ = ("_allow",)

    def __init__(self, allow: Callable[[str], Any]) -> None:
        self._allow = allow

    def __getitem__(self, key: tuple[str, str]) -> None:
        module, name = key
        # The "module.name" of a nested name would also be that of another object.
        if "." in name or not self._allow(f"{module}.{name}"):
            raise KeyError(key)

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0


class BytesSerializer:
    """Serializer of bytes-like objects; received data is `bytes`, a copy."""

    def dump(self, data: Any) -> Stream:
        """Return the memory of `data`, not copied; it must not change until the put is done.

        Raises:
            EncodeError: It has no buffer, or not in one piece.
        """
        return Stream.frombuffer(flatten("bytes", data))

    def load(self, data: Stream) -> bytes:
        """Return the content of the stream as bytes."""
        return bytes(data)


class BufferSerializer:
    """Serializer of bytes-like objects; received data is a writable `memoryview`, not copied."""

    def dump(self, data: Any) -> Stream:
        """Return the memory of `data`, not copied; it must not change until the put is done.

        Raises:
            EncodeError: It has no buffer, or not in one piece.
        """
        return Stream.frombuffer(flatten("buffer", data))

    def load(self, data: Stream) -> memoryview:
        """Return the content of the stream in one view, copied only if it is in several, or not writable."""
        view = data.toview()
        return memoryview(bytearray(view)) if view.readonly else view


class StreamSerializer:
    """Serializer of streams."""

    def dump(self, data: Stream) -> Stream:
        """Return another stream of the same memory: `data` stays as it is; its memory must not change until the put is done.

        Raises:
            EncodeError: It is no stream.
        """
        if not hasattr(data, "readviews"):
            raise EncodeError("stream", f"{type(data).__name__} is no Stream", "Stream.frombuffer(data) makes one")
        return data.copy()

    def load(self, data: Stream) -> Stream:
        """Return another stream of the same memory, which belongs to the receiver."""
        return data.copy()
