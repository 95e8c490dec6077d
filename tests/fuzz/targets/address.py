"""Addresses, from text that anybody may have written."""

from __future__ import annotations

import copy
import os

from redpoll.address import Address
from redpoll.errors import UsageError

__all__ = ["WORDS", "target"]

WORDS = (
    b"unix:",
    b"inproc:",
    b"tcp:",
    b"://",
    b"[::1]",
    b"[fe80::1%eth0]",
    b"[::ffff:10.0.0.1]",
    b"127.0.0.1",
    b":2998",
    b":65536",
    b":00080",
    b"xn--",
    b"\xc3\x9f",
    b"\xe2\x80\x8b",
    b"\xe3\x80\x82",
    b"\xc4\xb0",
    b"\xed\xb2\x80",
    b"\x00",
    b"\xff",
    b".",
    b"a" * 64,
)


def target(data: bytes) -> None:
    """Reads any text as an address, or raises one UsageError; what it reads it writes and reads again the same.

    The bytes are the text in UTF-8; what is none stands for itself, as in names of files.
    """
    for errors in ("surrogateescape", "surrogatepass"):
        try:
            text = data.decode("utf-8", errors)
        except UnicodeDecodeError:
            continue
        for read in (Address.parse, Address.of_host):
            try:
                address = read(text)
            except UsageError:
                continue
            _check(address)
    for name in (data, os.fsdecode(data)):
        address = Address.of_socket(name)
        assert address.kind == "unix"
        if address.host:
            _check(address)


def _check(address: Address) -> None:
    again = Address.parse(str(address))
    assert again == address
    assert hash(again) == hash(address)
    assert copy.copy(address) == address
    assert Address(address.kind, address.host, address.port) == address
    assert "\n" not in str(address)
