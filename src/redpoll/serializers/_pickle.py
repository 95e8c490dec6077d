"""Python objects, read by an allow-list; arrays go and come without being copied."""

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
    """Carries Python's own values and NumPy's arrays, and objects of the classes that `allow` names.

    Without `allow`: None, bool, int, float, complex, str, bytes, bytearray, memoryview (as one of bytes), list, tuple,
    dict, set, frozenset; array, deque, OrderedDict, Counter, defaultdict (of a builtin type or None); date, time,
    datetime, timedelta, timezone, ZoneInfo; Decimal, Fraction, UUID, the classes of ipaddress, and pure paths; NumPy's
    arrays, scalars and dtypes, if the receiving program has imported numpy. All of them by exact class, no subclasses.

    Whatever arrives: nothing is called but the constructors of these, with checked arguments, and what `allow` names;
    and no more memory is taken than some 250 times what arrived. Time is bounded by `Config.max_message_size` alone: keys,
    or items of sets, can be chosen to collide, and then take time by the square of their number. Sharing and circles among
    objects are kept.

    It writes pickle's protocol 5, and reads what it writes; other opcodes are refused. The memory of arrays and
    memoryviews from 2 KiB up is neither copied on sending, if it is in one piece, nor on arrival: what was writable is
    writable, and refers to the message that it came in. It must not change until the send is done. Large bytes are not
    copied on sending, and once on arrival.
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
        """Choose what is let in.

        Args:
            allow: Classes, functions, or their full names "module.name", that a peer may have called with any arguments,
                and whose instances it may give any state: so every peer has to be trusted with them. Never what can run
                code or reach other objects: eval, getattr, functools.partial. Default none.
            dump: Makes bytes of an object in place of all this, such as ``cloudpickle.dumps``. Together with `load`.
            load: Makes the object again, such as ``pickle.loads``. **Nothing is checked then: whoever can send to this
                program can run code in it.**
            persistent_id: Gives an id for an object that is sent by its id alone, None for all others.
            persistent_load: Gives the object that has an id, or raises; it meets ids that anybody may have sent.

        Raises:
            ConfigError: `allow` names a module, or what has no name; `dump` without `load` or the other way round; one of
                them with what it makes ineffective.
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
                raise ConfigError(option, given, "is no function")
        if (dump is None) is not (load is None):
            option, given = ("load", dump) if load is None else ("dump", load)
            raise ConfigError(option, None, f"is missing beside {given!r}: what one writes the other has to read")
        if load is not None and (self._allowed or persistent_id is not None or persistent_load is not None):
            raise ConfigError("load", load, "checks no allow, and knows no persistent ids", "leave one of them out")

    def __call__(self, *args: Any, **options: Any) -> PickleSerializer:
        """Another one, with options of its own: ``redpoll.serializers.pickle(allow=[...])``."""
        return PickleSerializer(*args, **options)

    def encode(self, obj: Any, /) -> Encoded:
        """`obj` as a pickle, its large parts apart.

        Whether the other end lets it in is that end's to say: it refuses the message as `Undecodable`, with what its
        `allow` would need.

        Raises:
            EncodeError: Something in `obj` cannot be pickled.
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
        """The object that `data` spells; with memory of its own where that came in `data`.

        Raises:
            DecodeError: It asks for a name that is not let in, which the error names with the `allow` that would; it is
                no pickle of this serializer, or one that is damaged; or a class that was let in raised.
        """
        # Small bodies may come as bytes, and what was writable is to be so again.
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
