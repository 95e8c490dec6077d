"""Private keys."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from redpoll.errors import ConfigError, UsageError
from redpoll.pki.keys import KeyKind, described, kind_of, make_key, read_key, write_key

PEM = serialization.Encoding.PEM
OPENSSL = serialization.PrivateFormat.TraditionalOpenSSL
PKCS8 = serialization.PrivateFormat.PKCS8
OPEN = serialization.NoEncryption()


@pytest.mark.parametrize(("kind", "text"), [("ec", "EC P-256"), ("rsa-2048", "RSA 2048"), ("rsa-3072", "RSA 3072")])
def test_every_kind(kind: KeyKind, text: str) -> None:
    """Each kind of key is as named, and survives a round trip."""
    key = make_key(kind)
    assert (kind_of(key), described(key.public_key())) == (kind, text)
    again = read_key(b"words\n" + write_key(key), "file")
    assert again is not None
    assert again.public_key() == key.public_key()


def test_the_table_has_every_kind() -> None:
    """No kind is without a test."""
    assert get_args(KeyKind) == ("ec", "rsa-2048", "rsa-3072")


def test_other_kinds_are_described() -> None:
    """Keys that others made have a description too, and new ones beside them a kind that is like them."""
    other = ec.generate_private_key(ec.SECP384R1())
    assert (described(other.public_key()), kind_of(other)) == ("EC secp384r1", "ec")
    assert described(ed25519.Ed25519PrivateKey.generate().public_key()) == "Ed25519"
    assert kind_of(rsa.generate_private_key(65_537, 1024)) == "rsa-2048"


def test_an_unknown_kind() -> None:
    """A kind that is not made is refused with those that are."""
    unknown: Any = "dsa"
    with pytest.raises(ConfigError) as raised:
        make_key(unknown)
    assert str(raised.value) == "key='dsa': is not a kind of key (choose one of ec, rsa-2048, rsa-3072)"


@pytest.mark.parametrize("kind", ["ec", "rsa-2048"])
def test_openssls_own_form_is_read(kind: KeyKind) -> None:
    """A key as older OpenSSL writes it, between other blocks, is found; the first one counts."""
    key = make_key(kind)
    other = b"-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n"
    found = read_key(other + key.private_bytes(PEM, OPENSSL, OPEN) + write_key(make_key("ec")), "file")
    assert found is not None
    assert found.public_key() == key.public_key()


def test_no_key_is_none() -> None:
    """Text without a private key has none."""
    assert read_key(b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "file") is None


def test_keys_that_cannot_be_used() -> None:
    """Encrypted, damaged and other kinds of keys are refused with what to do."""
    locked = make_key("ec").private_bytes(PEM, PKCS8, serialization.BestAvailableEncryption(b"word"))
    old = make_key("ec").private_bytes(PEM, OPENSSL, serialization.BestAvailableEncryption(b"word"))
    strange = ed25519.Ed25519PrivateKey.generate().private_bytes(PEM, PKCS8, OPEN)
    damaged = b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"
    texts = {
        locked: "the private key in k.pem is encrypted (decrypt it: openssl pkey -in k.pem -out FILE)",
        old: "the private key in k.pem is encrypted (decrypt it: openssl pkey -in k.pem -out FILE)",
        strange: "the private key in k.pem is neither EC nor RSA (make it with redpoll pki)",
        damaged: "the private key in k.pem cannot be read (restore the file, or make it again)",
    }
    for pem, text in texts.items():
        with pytest.raises(UsageError) as raised:
            read_key(pem, "k.pem")
        assert str(raised.value) == text
