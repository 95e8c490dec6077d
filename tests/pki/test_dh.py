"""Diffie-Hellman parameters."""

from __future__ import annotations

import base64
import ssl
from pathlib import Path

import pytest

from redpoll.errors import ConfigError
from redpoll.pki import dh_parameters


def e_times(power: int) -> int:
    """The whole part of e times two to that power."""
    total, term, divisor = 0, 1 << (power + 64), 1
    while term:
        total += term
        term //= divisor
        divisor += 1
    return total >> 64


def der(number: int) -> bytes:
    """An INTEGER as DER writes it."""
    return b"\x02" + sized(number.to_bytes(number.bit_length() // 8 + 1))


def sized(content: bytes) -> bytes:
    """Content behind its length as DER writes it."""
    length = len(content)
    return (bytes([length]) if length < 128 else b"\x82" + length.to_bytes(2)) + content


@pytest.mark.parametrize(("bits", "offset"), [(2048, 560_316), (3072, 2_625_351)])
def test_they_are_those_of_rfc_7919(bits: int, offset: int) -> None:
    """Prime and generator are what the formula of the appendix gives, as PKCS #3 writes them."""
    prime = 2**bits - 2 ** (bits - 64) + (e_times(bits - 130) + offset) * 2**64 - 1
    begin, *lines, end = dh_parameters(bits).decode().splitlines()
    assert (begin, end) == ("-----BEGIN DH PARAMETERS-----", "-----END DH PARAMETERS-----")
    assert base64.b64decode("".join(lines)) == b"\x30" + sized(der(prime) + der(2))


def test_openssl_takes_them(tmp_path: Path) -> None:
    """A server's context loads both."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for bits in (2048, 3072):
        path = tmp_path / f"{bits}.pem"
        path.write_bytes(dh_parameters(bits))
        context.load_dh_params(str(path))


def test_no_other_size() -> None:
    """A size without a standard group is refused."""
    with pytest.raises(ConfigError, match=r"bits=1024: has no standard group \(choose 2048 or 3072\)"):
        dh_parameters(1024)
