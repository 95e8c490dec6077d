"""JSON text in UTF-8."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NoReturn

from redpoll.errors import DecodeError, EncodeError

if TYPE_CHECKING:
    from redpoll.serializers.base import Buffer

__all__ = ["JsonSerializer"]


class JsonSerializer:
    """Carries what JSON has: None, bool, int, float, str, lists, and dicts with text keys.

    A tuple arrives as a list, and a key that is None, a bool or a number as text. NaN and the infinities are no JSON
    and are refused on both sides. Of equal keys in one object the last counts.
    """

    name = "json"
    wants_buffer = False

    def __init__(self) -> None:
        """Build the encoder and the decoder once."""
        self._encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode
        self._decode = json.JSONDecoder(parse_constant=_refuse_constant).decode

    def encode(self, obj: Any, /) -> bytes:
        """`obj` as compact JSON.

        Raises:
            EncodeError: `obj` holds something that JSON has not, holds itself, or is nested too deeply.
        """
        try:
            return self._encode(obj).encode("utf-8")
        except (TypeError, ValueError, RecursionError) as error:
            raise EncodeError(self.name, str(error)) from error

    def decode(self, data: Buffer, /) -> Any:
        """The value that `data` spells.

        Raises:
            DecodeError: `data` is no JSON, no UTF-8, or nested too deeply.
        """
        try:
            return self._decode(str(data, "utf-8"))
        except (ValueError, RecursionError) as error:
            raise DecodeError(self.name, str(error) or type(error).__name__) from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
