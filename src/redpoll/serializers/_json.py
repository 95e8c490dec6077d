"""The JSON serializer."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, NoReturn

from redpoll.errors import DecodeError, EncodeError
from redpoll.serializers.containers import MAX_CONTAINERS, check_limit, too_many

if TYPE_CHECKING:
    from redpoll.serializers.base import Buffer

__all__ = ["JsonSerializer"]

_TEXT: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"', re.DOTALL)


class JsonSerializer:
    """Carries JSON values: None, bool, int, float, str, lists, and dicts with str keys.

    A tuple is received as a list, and a key that is None, a bool or a number as str. NaN and the infinities are not
    JSON and are rejected by both sides. Of equal keys in one object the last one is used.
    """

    name = "json"
    wants_buffer = False

    def __init__(self, *, max_containers: int = MAX_CONTAINERS) -> None:
        """Create the encoder and the decoder once.

        Args:
            max_containers: Maximum number of lists and dicts in one received message, 1 to 2**63-1 (default 1,000,000):
                `[` and `]` are two bytes of a message and take 64 bytes of memory.

        Raises:
            ConfigError: `max_containers` is out of range.
        """
        self._max_containers = check_limit(max_containers)
        self._encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode
        self._decode = json.JSONDecoder(parse_constant=_refuse_constant).decode

    def encode(self, obj: Any, /) -> bytes:
        """Encode `obj` as compact JSON.

        Raises:
            EncodeError: `obj` contains a value that JSON does not have, contains itself, or is nested too deeply.
        """
        try:
            return self._encode(obj).encode("utf-8")
        except (TypeError, ValueError, RecursionError) as error:
            raise EncodeError(self.name, str(error)) from error

    def decode(self, data: Buffer, /) -> Any:
        """Decode JSON.

        Raises:
            DecodeError: `data` is not JSON, not UTF-8, is nested too deeply, or has too many lists and dicts.
        """
        try:
            text = str(data, "utf-8")
            # Each has at least two characters.
            if len(text) > 2 * self._max_containers:
                self._count(text)
            return self._decode(text)
        except (ValueError, RecursionError) as error:
            raise DecodeError(self.name, str(error) or type(error).__name__) from error

    def _count(self, text: str) -> None:
        if _brackets(text) > self._max_containers and _brackets(_TEXT.sub("", text)) > self._max_containers:
            raise too_many(self.name, self._max_containers, type(self).__name__)


def _brackets(text: str) -> int:
    return text.count("[") + text.count("{")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
