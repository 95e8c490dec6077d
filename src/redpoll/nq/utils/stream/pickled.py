"""Pickles in streams, read by an allow-list; arrays go and come without being copied."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from redpoll.errors import ConfigError, DecodeError, EncodeError
from redpoll.nq.utils.stream.view import Stream
from redpoll.serializers import Buffer, Encoded, Parts, allow_by_name
from redpoll.serializers.pickling.allow import collect
from redpoll.serializers.pickling.arrays import NoNumPyError
from redpoll.serializers.pickling.reading import RefusedNameError, read
from redpoll.serializers.pickling.writing import write

__all__ = ["PickleSerializer", "PicklingError", "UnpicklingError"]

_NAME = "pickle"


class PicklingError(EncodeError, pickle.PicklingError):
    """Something cannot be pickled; its cause says why."""


class UnpicklingError(DecodeError, pickle.UnpicklingError):
    """What arrived asks for a name that is not let in, is no pickle of `PickleSerializer`, or is damaged."""


class PickleSerializer:
    """Carries Python's own values and NumPy's arrays, and objects of the classes that `allow` names.

    It is `redpoll.serializers.PickleSerializer` with the interface of net-queue's: what is let in without `allow`, what
    may happen when a stranger's pickle is read, and what is copied, that one says. Both read what either writes.
    net-queue's let everything in without `allow`.
    """

    def __init__(
        self,
        allow: Callable[[str], Any] | Iterable[Any] | None = None,
        dump: Callable[[Any], Any] | None = None,
        load: Callable[[Any], Any] | None = None,
    ) -> None:
        """Choose what is let in.

        Args:
            allow: Is called with the full name, "module.name", of each class or function that a pickle asks for beyond
                those values, and says whether to let it in: a peer may then call it with any arguments, and give its
                instances any state. `allow_by_name` makes one. It is not asked for what is below another name, as a class
                within a class: a list of classes, functions and names, as redpoll's serializer takes, can have those.
                None (default): nothing beyond those values.
            dump: Gives an id for an object that is sent by its id alone, None for all others (default None: none is).
            load: Gives the object that has an id, or raises; it meets ids that anybody may have sent (default None: a
                pickle with ids is an error).

        Raises:
            ConfigError: `allow` lists a module, or what has no name; one of them is no function.
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
        """An `allow` that lets in what has one of these names.

        Args:
            names: "module.name", exactly: where the class or function was defined. What is below a name is not let in,
                nor what is in a module that is named: it leads to all that the module imports.

        Raises:
            ConfigError: One is the name of a module, or no name of this form.
        """
        exact = frozenset(allow_by_name(*names))
        return exact.__contains__

    def dump(self, data: Any) -> Stream:
        """A pickle of `data`; the memory of large arrays, memoryviews and bytes in it is not copied.

        That memory must not change until the put is done.

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
        """The object whose pickle is in the stream, which is empty then; arrays refer to the memory that it was in.

        Raises:
            UnpicklingError: The pickle asks for a name that is not let in, which the error names with the `allow` that
                would; it was not written by this serializer, or is damaged; or a class that was let in raised.
        """
        return self.decode(data.toview())

    def encode(self, data: Any) -> Encoded:
        """As `dump`, as the body of a message: what a communicator calls where this serializer is its own."""
        try:
            return write(data, self._dump)
        except Exception as error:
            raise PicklingError(_NAME, str(error) or type(error).__name__) from error

    def decode(self, data: Buffer) -> Any:
        """As `load`, of the body of a message."""
        body = memoryview(bytearray(data)) if type(data) is bytes else memoryview(data)
        # What was writable is to be so again.
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
            # net-queue's users get arrays without having imported anything.
            if find_spec("numpy") is None:
                raise
            import_module("numpy")
            return read(body, self._allowed, self._load)


class _Asked(Mapping[tuple[str, str], Any]):
    """A table of what is let in whose rows a function knows."""

    __slots__ = ("_allow",)

    def __init__(self, allow: Callable[[str], Any]) -> None:
        self._allow = allow

    def __getitem__(self, key: tuple[str, str]) -> None:
        module, name = key
        # "module.name" of what is below another name would be that of something else as well.
        if "." in name or not self._allow(f"{module}.{name}"):
            raise KeyError(key)

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0
