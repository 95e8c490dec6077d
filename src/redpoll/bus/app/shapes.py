"""Shapes: the arguments and the results of functions, checked and converted by their annotations.

msgspec does the work (extra ``typed``). Without it a function takes what MessagePack carries, and nothing is converted.
"""

from __future__ import annotations

import base64
import importlib
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from redpoll.errors import BadPayload, ConfigError, EncodeError

try:
    msgspec: Any = importlib.import_module("msgspec")
except ModuleNotFoundError:
    msgspec = None

__all__ = ["GIVEN", "Extra", "Given", "Shape"]

Extra = Literal["ignore", "refuse"]


class _Given:
    """The default of arguments that the app gives."""

    def __repr__(self) -> str:
        return "GIVEN"


GIVEN: Final[Any] = _Given()
"""The default of a handler's argument that the app gives, by its annotation: the running `Task`, the `Broadcast`, the `App`,
or a value of the app's lifespan. ``async def store(row: Row, pool: Pool = GIVEN)``. It is not sent."""

_MISSING: Final = object()
#: Carried by MessagePack as they are; text elsewhere.
_BYTES: Final = (bytes, bytearray, memoryview)
#: Types that need no conversion: MessagePack gives back the value that was sent.
_CARRIED: Final = frozenset({Any, None, type(None), bool, int, float, str, bytes, list, dict, object})


class Given(NamedTuple):
    """An argument that the app gives.

    Attributes:
        name: Its name.
        kind: The class that its annotation names.
    """

    name: str
    kind: type


class Shape:
    """The arguments and the result of a function.

    Args:
        function: The function.
        title: Its name in errors.
        extra: The fate of arguments that it does not have.

    Attributes:
        names: The names of its arguments, in order, without those that the app gives.
        given: The arguments that the app gives.

    Raises:
        ConfigError: It has an argument that cannot be sent by name, or an annotation that cannot be used here.
    """

    def __init__(self, function: Callable[..., Any], title: str, extra: Extra) -> None:
        self._title = title
        self._extra = extra
        self._signature = inspect.signature(function)
        try:
            hints = get_type_hints(function, include_extras=True)
        except NameError as error:
            hint = "import it outside of `if TYPE_CHECKING:`, at the level of the module"
            raise ConfigError("annotations", title, f"cannot be resolved: {error}", hint) from error
        self.given: list[Given] = []
        self._wanted: dict[str, tuple[Any, bool]] = {}
        for name, parameter in self._signature.parameters.items():
            if parameter.kind not in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}:
                raise ConfigError("function", title, f"has the argument {parameter}", "arguments are sent by name")
            hint = hints.get(name, Any)
            if parameter.default is GIVEN:
                self.given.append(Given(name, _class_of(title, name, hint)))
            else:
                self._wanted[name] = hint, parameter.default is not parameter.empty
        self.names = tuple(self._wanted)
        self._result = hints.get("return", Any)
        if inspect.isasyncgenfunction(function):
            # The type of the values that it yields.
            self._result = next(iter(get_args(self._result)), Any)
        if msgspec is None:
            for hint in (*(each for each, _ in self._wanted.values()), self._result):
                _check_carried(title, hint)
        else:
            self._struct = _struct_of(title, self._wanted, self._result, extra)
            self._fields = msgspec.inspect.type_info(self._struct) if extra == "refuse" else None

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by their names.

        Raises:
            TypeError: The function has not such arguments.
        """
        try:
            found = self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{self._title}: {error}") from None
        for name, _ in self.given:
            found.pop(name, None)
        return dict(found)

    def to_wire(self, value: Any, *, text: bool = False) -> Any:
        """Return a value in plain types, which a serializer carries.

        Args:
            value: The value.
            text: Write bytes as text, for a serializer that has no others. Keys are text anyway.

        Raises:
            EncodeError: It has a type that is not known.
        """
        if msgspec is None:
            return value
        try:
            return msgspec.to_builtins(value, builtin_types=() if text else _BYTES, str_keys=True, enc_hook=_plain)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise EncodeError("typed", f"{self._title}: {error}") from error

    def arguments(self, values: Any) -> dict[str, Any]:
        """Return arguments that arrived, converted.

        Raises:
            BadPayload: They do not fit; the text has the path of the field.
        """
        if msgspec is None:
            return self._unchecked(values)
        found = _convert(values, self._struct, self._title)
        if self._fields is not None:
            unknown = _unknown(values, self._fields, "$")
            if unknown is not None:
                raise BadPayload("typed", f"{self._title}: Object contains unknown field {unknown}")
        return {name: value for name in self.names if (value := getattr(found, name)) is not _MISSING}

    def result(self, value: Any) -> Any:
        """Return a result that arrived, converted.

        Raises:
            BadPayload: It does not fit.
        """
        return value if msgspec is None or self._result is Any else _convert(value, self._result, self._title)

    def _unchecked(self, values: Any) -> dict[str, Any]:
        if not isinstance(values, dict):
            raise BadPayload("typed", f"{self._title}: expected the arguments by name, got {type(values).__name__}")
        missing = [name for name, (_, optional) in self._wanted.items() if not optional and name not in values]
        unknown = [name for name in values if name not in self._wanted]
        if missing:
            raise BadPayload("typed", f"{self._title}: missing argument {missing[0]!r}")
        if unknown and self._extra == "refuse":
            raise BadPayload("typed", f"{self._title}: unknown argument {unknown[0]!r}")
        return {name: values[name] for name in self.names if name in values}


def _struct_of(title: str, wanted: Mapping[str, tuple[Any, bool]], result: Any, extra: Extra) -> Any:
    fields = [(name, hint, _MISSING) if optional else (name, hint) for name, (hint, optional) in wanted.items()]
    try:
        struct = msgspec.defstruct("arguments", fields, kw_only=True, forbid_unknown_fields=extra == "refuse")
        # An annotation that cannot be used is told now, not with the first message.
        for kind in (struct, result):
            msgspec.json.Decoder(kind, dec_hook=_own)
    except (TypeError, RuntimeError, NotImplementedError) as error:
        raise ConfigError("annotations", title, f"cannot be used: {error}") from error
    return struct


def _convert(value: Any, kind: Any, title: str) -> Any:
    try:
        return msgspec.convert(value, kind, str_keys=True, dec_hook=_own)
    except (msgspec.ValidationError, TypeError, ValueError, RecursionError) as error:
        raise BadPayload("typed", f"{title}: {error}") from error


def _unknown(value: Any, kind: Any, path: str) -> str | None:
    """Return a field of a value that its type does not have, with its path; None if there is none.

    The value fits otherwise, so one type at most of a union has fields.
    """
    parts: Iterable[tuple[Any, Any, str]] = ()
    fields = getattr(kind, "fields", None)
    if isinstance(kind, msgspec.inspect.UnionType):
        parts = ((value, each, path) for each in kind.types)
    elif fields is not None and isinstance(value, dict):
        known = {each.encode_name: each.type for each in fields}
        tag = getattr(kind, "tag_field", None)
        if tag is not None and value.get(tag) != kind.tag:
            return None
        for name in value:
            if name not in known and name != tag:
                return f"`{name}` - at `{path}`"
        parts = ((each, known[name], f"{path}.{name}") for name, each in value.items() if name != tag)
    elif fields is not None and isinstance(value, list):
        parts = ((each, field.type, f"{path}[...]") for each, field in zip(value, fields, strict=False))
    elif isinstance(value, dict) and hasattr(kind, "value_type"):
        parts = ((each, kind.value_type, f"{path}[...]") for each in value.values())
    elif isinstance(value, list) and hasattr(kind, "item_type"):
        parts = ((each, kind.item_type, f"{path}[...]") for each in value)
    elif isinstance(value, list) and hasattr(kind, "item_types"):
        parts = ((each, item, f"{path}[...]") for each, item in zip(value, kind.item_types, strict=False))
    elif isinstance(kind, msgspec.inspect.Metadata):
        parts = ((value, kind.type, path),)
    return next((found for part in parts if (found := _unknown(*part)) is not None), None)


def _plain(value: Any) -> Any:
    """Return a value of a type that msgspec does not know in types that it does."""
    if hasattr(value, "model_dump"):  # a model of pydantic
        return value.model_dump()
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        return value.item()
    # Names and offsets of a structured one are not sent, and objects cannot be.
    if (
        numpy is not None
        and isinstance(value, numpy.ndarray)
        and value.dtype.names is None
        and not value.dtype.hasobject
    ):
        return [value.dtype.str, list(value.shape), value.tobytes()]
    raise TypeError(f"{type(value).__name__} cannot be sent")


def _own(kind: Any, value: Any) -> Any:
    """Make a value of a type that msgspec does not know."""
    made = get_origin(kind) or kind
    if hasattr(made, "model_validate"):
        try:
            return made.model_validate(value)
        except ValueError as error:
            errors: Callable[[], list[dict[str, Any]]] | None = getattr(error, "errors", None)
            if errors is None:
                raise
            told = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in errors())
            raise ValueError(told) from error
    if made.__module__ == "numpy" and made.__name__ == "ndarray":
        match value:
            case [str() as dtype, list() as shape, bytes() | memoryview() | str() as data]:
                buffer = base64.b64decode(data) if isinstance(data, str) else data
                return sys.modules["numpy"].frombuffer(buffer, dtype).reshape(shape)
            case _:
                raise ValueError(f"expected an array, got {type(value).__name__}")
    if isinstance(value, made):
        return value
    raise ValueError(f"expected {made.__name__}, got {type(value).__name__}")


def _class_of(title: str, name: str, hint: Any) -> type:
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    found = get_origin(hint) or hint
    if isinstance(found, type) and found is not object:
        return found
    raise ConfigError("annotations", title, f"{name!r} must name the class of what is given, not {hint!r}")


def _check_carried(title: str, hint: Any) -> None:
    """Check that values of an annotation need no conversion.

    Raises:
        ConfigError: They do.
    """
    origin = get_origin(hint)
    if origin is Annotated or origin in {Union, types.UnionType, list, dict}:
        for each in get_args(hint)[:1] if origin is Annotated else get_args(hint):
            _check_carried(title, each)
    elif origin is not Literal and not isinstance(hint, TypeVar) and hint not in _CARRIED:
        raise ConfigError(
            "annotations",
            title,
            f"{hint!r} needs msgspec",
            "pip install 'redpoll[typed]', or use what MessagePack carries: numbers, text, bytes, lists and dicts",
        )
