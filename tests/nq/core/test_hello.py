"""What ends say to one another first."""

from __future__ import annotations

from typing import Any

import pytest

from redpoll.nq.core.hello import VERSION, hello_body, hello_problem
from redpoll.nq.core.names import Purpose
from redpoll.serializers import msgpack


@pytest.mark.parametrize("purpose", Purpose)
def test_a_hello_is_read(purpose: Purpose) -> None:
    """Who is expected is found right, the other is not."""
    said = hello_body(purpose)
    assert hello_problem(said, purpose) is None
    (other,) = set(Purpose) - {purpose}
    assert hello_problem(said, other) == f"it is no {other}"


def test_a_later_version_is_spoken_to() -> None:
    """Who speaks a later version speaks this one as well, and may say more; an earlier one is told."""
    later = msgpack.encode({"nq": VERSION + 1, "purpose": "client", "more": [1]})
    assert hello_problem(later, Purpose.CLIENT) is None
    earlier = msgpack.encode({"nq": VERSION - 1, "purpose": "client"})
    assert hello_problem(earlier, Purpose.CLIENT) == f"it speaks version {VERSION - 1}, and {VERSION} is spoken here"


@pytest.mark.parametrize("data", [{}, {"nq": "1"}, {"nq": True}, {"nq": None, "purpose": "client"}, [1], None, 1, "nq"])
def test_what_is_no_hello(data: Any) -> None:
    """Anything else that can be read is told from a hello."""
    assert hello_problem(msgpack.encode(data), Purpose.CLIENT) == "this is no hello of nq"


@pytest.mark.parametrize("data", [b"", b"\xff", b"\xc1", b"\x81", b"\x80" * 100, memoryview(b"\x93\x01")])
def test_what_is_nothing(data: Any) -> None:
    """Bytes that mean nothing are no hello either."""
    assert hello_problem(data, Purpose.CLIENT) == "this is no hello of nq"


def test_a_large_one_is_not_decoded() -> None:
    """Nobody is made to decode megabytes before the other end has said who it is."""
    said = {"nq": VERSION, "purpose": "client", "more": bytes(4000)}
    assert hello_problem(msgpack.encode(said), Purpose.CLIENT) is None
    assert hello_problem(msgpack.encode(said | {"more": bytes(5000)}), Purpose.CLIENT) == "this is no hello of nq"
