"""The pickle serializer: Python objects, decoded by an allow-list; arrays are not copied."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from redpoll.errors import ConfigError, DecodeError, EncodeError, RedpollError
from redpoll.serializers.flat import flatten
from redpoll.serializers.parts import Encoded
from redpoll.serializers.pickling.allow import collect
from redpoll.serializers.pickling.reading import RefusedNameError, read
from redpoll.serializers.pickling.writing import write

if TYPE_CHECKING:
    from redpoll.serializers.base import Buffer

__all__ = ["PickleSerializer"]


class PickleSerializer:
    """Carries Python's own values, NumPy arrays, and objects of the classes in `allow`.

    Without `allow`: None, bool, int, float, complex, str, bytes, bytearray, memoryview (as one of bytes), list, tuple,
    dict, set, frozenset; array, deque, OrderedDict, Counter, defaultdict (of a builtin type or None); date, time,
    datetime, timedelta, timezone, ZoneInfo; Decimal, Fraction, UUID, the classes of ipaddress, and pure paths; NumPy's
    arrays, scalars and dtypes, if the receiving program has imported numpy. All of these by exact class, without
    subclasses.

    Whatever is received, only the constructors of these are called, with checked arguments, and what is in `allow`.
    Memory is limited to about 250 times the size of the message. Time is limited by `Config.max_message_size` alone:
    keys of dicts and items of sets can be chosen to collide, and then take time quadratic in their number. Shared
    references and cycles are preserved. Deques and defaultdicts may be nested 2,000 deep, arrays of objects 100, and no
    array of objects may contain itself.

    It writes pickle protocol 5, and reads what it writes; other opcodes are rejected. The memory of arrays and
    memoryviews from 2 KiB is not copied on sending, if it is contiguous, nor on receipt: writable objects stay
    writable, and refer to the memory of the message. It must not change until the send is done. Large bytes objects are
    not copied on sending, and are copied once on receipt.
    """

    name = "pickle"
    wants_buffer = True

    def __init__(
        self,
        allow: Iterable[Any] = (),
        dump: Callable[[Any], Any] | None = None,
        load: Callable[[Any], Any] | None = None,
        *,
        persistent_id: Callable[[Any], Any] | None = None,
        persistent_load: Callable[[Any], Any] | None = None,
    ) -> None:
        """Choose what is allowed.

        Args:
            allow: Classes, functions, or their full names "module.name", that a peer may call with any arguments, and
                whose instances it may give any attributes except Python's own, such as ``__class__``: every peer has to
                be trusted with them. Never allow anything that runs code or reaches other objects: eval, getattr,
                functools.partial. Default none.
            dump: Encodes an object in place of all this, for example ``cloudpickle.dumps``. Requires `load`.
            load: Decodes the object, for example ``pickle.loads``. **Nothing is checked then: any peer that can send to
                this program can run code in it.**
            persistent_id: Returns an id for an object that is sent by its id alone, None for all others.
            persistent_load: Returns the object for an id, or raises; any peer may have sent the id.

        Raises:
            ConfigError: `allow` contains a module, or an object without a name; `dump` without `load` or the reverse;
                or an option that another one disables.
        """
        self._allowed = collect(allow)
        self._dump = dump
        self._load = load
        self._persistent_id = persistent_id
        self._persistent_load = persistent_load
        for option, given in {
            "dump": dump,
            "load": load,
            "persistent_id": persistent_id,
            "persistent_load": persistent_load,
        }.items():
            if given is not None and not callable(given):
                raise ConfigError(option, given, "is not callable")
        if (dump is None) is not (load is None):
            option, given = ("load", dump) if load is None else ("dump", load)
            raise ConfigError(option, None, f"is required with {given!r}")
        if load is not None and (self._allowed or persistent_id is not None or persistent_load is not None):
            raise ConfigError("load", load, "ignores allow and persistent ids", "omit one of them")

    def __call__(self, *args: Any, **options: Any) -> PickleSerializer:
        """Return a serializer with options of its own: ``redpoll.serializers.pickle(allow=[...])``."""
        return PickleSerializer(*args, **options)

    def encode(self, obj: Any, /) -> Encoded:
        """Encode `obj` as a pickle with its large parts apart.

        Whether the receiver allows it is decided there: it refuses the message as `Undecodable`, with the missing entry
        of `allow`.

        Raises:
            EncodeError: `obj` contains something that cannot be pickled.
        """
        try:
            if self._dump is not None:
                return flatten(self.name, self._dump(obj))
            return write(obj, self._persistent_id)
        except RedpollError:
            raise
        except Exception as error:
            raise EncodeError(self.name, str(error) or type(error).__name__) from error

    def decode(self, data: Buffer, /) -> Any:
        """Decode a pickle; memory that arrived in `data` is not copied.

        Raises:
            DecodeError: The pickle uses a name that is not allowed, which the error gives with the missing entry of
                `allow`; it was not written by this serializer, or is damaged; or an allowed class raised.
        """
        # Small bodies may arrive as bytes, but writable objects have to stay writable.
        body = memoryview(bytearray(data)) if type(data) is bytes else memoryview(data)
        if body.readonly:
            body = memoryview(bytearray(body))
        try:
            if self._load is not None:
                return self._load(body)
            return read(body, self._allowed, self._persistent_load)
        except RefusedNameError as error:
            raise DecodeError(self.name, str(error), error.hint) from error
        except RedpollError:
            raise
        except Exception as error:
            raise DecodeError(self.name, str(error) or type(error).__name__) from error
