"""Files of certificates and keys, which may have been written by anybody and cut anywhere."""

from __future__ import annotations

import atexit
import base64
import functools
import tempfile
import warnings
from datetime import UTC, datetime
from pathlib import Path

from cryptography.utils import CryptographyDeprecationWarning

from redpoll.errors import ConfigError, RedpollError, UsageError
from redpoll.pki import Chain, inspect
from redpoll.tls.contexts import make_contexts
from redpoll.tls.record import TLS
from tests.fuzz.catalogue import CORPUS

__all__ = ["AS_CERTIFICATE", "AS_KEY", "AS_TEXT", "GIVEN", "WORDS", "target"]

#: What the rest of an input is, by its first byte: the whole text of a file, or a certificate or a key, in DER.
AS_TEXT, AS_CERTIFICATE, AS_KEY = range(3)

#: A file with the certificate of a node, that of its CA, and the node's key, which inputs are put into.
GIVEN = "given-chain"

WORDS = (
    *(b"-----BEGIN CERTIFICATE-----\n", b"\n-----END CERTIFICATE-----\n", b"-----BEGIN X509 CRL-----\n"),
    *(b"-----BEGIN PRIVATE KEY-----\n", b"\n-----END PRIVATE KEY-----\n", b"-----BEGIN EC PRIVATE KEY-----\n"),
    *(b"-----BEGIN RSA PRIVATE KEY-----\n", b"-----BEGIN ENCRYPTED PRIVATE KEY-----\n", b"Proc-Type: 4,ENCRYPTED\n"),
    # DER: types of values, lengths, object identifiers of keys, names and extensions.
    *(
        bytes([kind, 0])
        for kind in (0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x0C, 0x13, 0x16, 0x17, 0x18, 0x1E, 0x30, 0x31)
    ),
    *(b"\x80", b"\x82\xff\xff", b"\x84\xff\xff\xff\xff", b"\xa0\x03\x02\x01\x02", b"\xa3", b"\x01\x01\xff"),
    *(
        b"\x06\x03\x55\x04\x03",
        b"\x06\x03\x55\x1d\x11",
        b"\x06\x03\x55\x1d\x13",
        b"\x06\x03\x55\x1d\x25",
        b"\x06\x03\x55\x1d\x0e",
    ),
    *(
        b"\x06\x03\x2b\x65\x70",
        b"\x06\x07\x2a\x86\x48\xce\x3d\x02\x01",
        b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01",
    ),
    *(
        b"\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07",
        b"\x06\x05\x2b\x81\x04\x00\x22",
        b"490101000000Z",
        b"99991231235959Z",
    ),
    *(
        b"\x82\x03a.b",
        b"\x87\x04\x7f\x00\x00\x01",
        b"\x87\x05\x7f\x00\x00\x01\x01",
        b"\xa0\x02\x06\x00",
        b"\x88\x01\x2a",
    ),
)

#: When the given certificates are valid.
_NOW = datetime(2026, 6, 1, tzinfo=UTC)


def target(data: bytes) -> None:
    """Reads any file as certificates and a key, or raises one UsageError, or ConfigError where it is an option of a node's.

    The first byte says whether the rest is the file, or in DER the certificate or the key of an otherwise good one.
    """
    path = _folder() / "file.pem"
    path.write_bytes(_file(data[0] if data else AS_TEXT, data[1:]))
    with warnings.catch_warnings():
        # What is read today and will be refused some day.
        warnings.simplefilter("ignore", CryptographyDeprecationWarning)
        _read(path)


def _read(path: Path) -> None:
    try:
        report = inspect(path, now=_NOW)
    except UsageError as error:
        _check(error, path)
    else:
        assert repr(report)
    try:
        chain = Chain.load(path)
    except UsageError as error:
        _check(error, path)
    else:
        assert chain.pem
        assert (chain.name, chain.names) is not None
    for tls in (TLS(certificate=path), TLS(ca=path)):
        try:
            make_contexts(tls, now=_NOW)
        except ConfigError as error:
            _check(error, path)


def _check(error: RedpollError, path: Path) -> None:
    assert path.name in str(error), f"it does not name the file: {error}"


@functools.cache
def _folder() -> Path:
    """Where this process writes its files."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    return Path(folder.name)


@functools.cache
def _given() -> tuple[bytes, ...]:
    """The blocks of the given file: the node's certificate, its CA's, the key."""
    text = (CORPUS / "certificates" / GIVEN).read_bytes()[1:]
    return tuple(b"-----BEGIN " + block for block in text.split(b"-----BEGIN ")[1:])


def _file(how: int, data: bytes) -> bytes:
    certificate, authority, key = _given()
    if how == AS_CERTIFICATE:
        return _in_pem(b"CERTIFICATE", data) + authority + key
    if how == AS_KEY:
        return certificate + authority + _in_pem(b"PRIVATE KEY", data)
    return data


def _in_pem(label: bytes, der: bytes) -> bytes:
    return b"-----BEGIN %b-----\n%b-----END %b-----\n" % (label, base64.encodebytes(der), label)
