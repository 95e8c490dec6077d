"""Private keys: created, written, read and described."""

from __future__ import annotations

import re
from typing import Literal, get_args

from cryptography.exceptions import InternalError, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

from redpoll.errors import ConfigError, UsageError

__all__ = ["KeyKind", "PrivateKey", "described", "kind_of", "make_key", "read_key", "write_key"]

KeyKind = Literal["ec", "rsa-2048", "rsa-3072"]
"""Kinds of keys. "ec", the curve P-256, is the smallest and fastest. libchirp peers limited to TLS 1.2 need RSA:
"rsa-3072" is as strong as "ec", "rsa-2048" is for peers that are slow with it."""

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
"""Keys of certificates."""

_BITS: dict[str, int] = {"rsa-2048": 2048, "rsa-3072": 3072}
_BLOCK = re.compile(
    rb"-----BEGIN (?P<label>(?:RSA |EC |ENCRYPTED )?PRIVATE KEY)-----.*?-----END (?P=label)-----", re.DOTALL
)


def make_key(kind: KeyKind) -> PrivateKey:
    """Create a private key; an RSA key takes up to a second.

    Raises:
        ConfigError: There is no such kind.
    """
    if kind == "ec":
        return ec.generate_private_key(ec.SECP256R1())
    if kind not in _BITS:
        raise ConfigError("key", kind, "is not a kind of key", f"choose one of {', '.join(get_args(KeyKind))}")
    return rsa.generate_private_key(public_exponent=65_537, key_size=_BITS[kind])


def kind_of(key: PrivateKey) -> KeyKind:
    """Return the kind of a new key that replaces an existing one."""
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return "ec"
    return "rsa-2048" if key.key_size < 3072 else "rsa-3072"


def described(key: PublicKeyTypes) -> str:
    """Return kind and size of a key as printed by `show`: "EC P-256", "RSA 3072"."""
    if isinstance(key, ec.EllipticCurvePublicKey):
        return "EC P-256" if isinstance(key.curve, ec.SECP256R1) else f"EC {key.curve.name}"
    if isinstance(key, rsa.RSAPublicKey):
        return f"RSA {key.key_size}"
    return type(key).__name__.lstrip("_").removesuffix("PublicKey")


def write_key(key: PrivateKey) -> bytes:
    """Return a key in PEM (PKCS #8), unencrypted: libchirp and `ssl` read it without a password."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def read_key(pem: bytes, where: object) -> PrivateKey | None:
    """Return the first private key in PEM text, as libchirp does, or None if there is none.

    Args:
        pem: The text.
        where: Its file, for errors.

    Raises:
        UsageError: The key cannot be read, is encrypted, or is neither EC nor RSA.
    """
    block = _BLOCK.search(pem)
    if block is None:
        return None
    try:
        key = serialization.load_pem_private_key(block[0], None)
    except TypeError as error:
        hint = f"decrypt it: openssl pkey -in {where} -out FILE"
        raise UsageError(f"the private key in {where} is encrypted", hint) from error
    except (ValueError, UnsupportedAlgorithm, InternalError) as error:
        # The last comes for a key of the wrong length.
        raise UsageError(f"the private key in {where} cannot be read", "restore the file, or make it again") from error
    if not isinstance(key, PrivateKey):
        raise UsageError(f"the private key in {where} is neither EC nor RSA", "make it with redpoll pki")
    return key
