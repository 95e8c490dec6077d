"""X.509 certificates, as RFC 5280 wants them."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta, timezone
from ipaddress import ip_address
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.utils import CryptographyDeprecationWarning
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from hypothesis import given
from hypothesis import strategies as st

from redpoll.errors import ConfigError, UsageError
from redpoll.pki import CA, KeyKind
from redpoll.pki.certificates import SKEW, is_authority, is_issued_by, own_name, read_certificates, timed
from tests.pki.support import NOW


def extension(certificate: x509.Certificate, kind: type[Any]) -> Any:
    """The value of an extension and whether it is critical."""
    found = certificate.extensions.get_extension_for_class(kind)
    return found.value, found.critical


def test_a_ca() -> None:
    """It may sign nodes and no further CA, both critical, and identifies its key."""
    certificate = CA.make("mine", now=NOW, days=10).certificates[0]
    assert certificate.subject == certificate.issuer
    assert extension(certificate, x509.BasicConstraints) == (x509.BasicConstraints(ca=True, path_length=0), True)
    usage, critical = extension(certificate, x509.KeyUsage)
    assert (usage.key_cert_sign, usage.crl_sign, usage.digital_signature, critical) == (True, True, False, True)
    own, _ = extension(certificate, x509.SubjectKeyIdentifier)
    above, _ = extension(certificate, x509.AuthorityKeyIdentifier)
    assert own.digest == above.key_identifier
    assert certificate.version is x509.Version.v3
    assert is_authority(certificate)


@pytest.mark.parametrize(("kind", "encipherment"), [("ec", False), ("rsa-2048", True)])
def test_a_node(kind: KeyKind, encipherment: bool) -> None:
    """It signs no other, acts as client and as server, and names its signer's key and no certificate of it."""
    authority = CA.make(now=NOW)
    certificate = authority.issue("worker", ["worker.example.org", "10.0.0.7"], key=kind, now=NOW).certificate
    assert extension(certificate, x509.BasicConstraints) == (x509.BasicConstraints(ca=False, path_length=None), True)
    usage, critical = extension(certificate, x509.KeyUsage)
    assert (usage.digital_signature, usage.key_encipherment, critical) == (True, encipherment, True)
    assert not usage.key_cert_sign
    assert not usage.crl_sign
    roles, _ = extension(certificate, x509.ExtendedKeyUsage)
    assert set(roles) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    names, _ = extension(certificate, x509.SubjectAlternativeName)
    assert list(names) == [x509.DNSName("worker.example.org"), x509.IPAddress(ip_address("10.0.0.7"))]
    signer, _ = extension(authority.certificates[0], x509.SubjectKeyIdentifier)
    above, _ = extension(certificate, x509.AuthorityKeyIdentifier)
    assert (above.key_identifier, above.authority_cert_serial_number) == (signer.digest, None)
    assert not is_authority(certificate)
    assert is_issued_by(certificate, authority.certificates[0])
    assert not is_issued_by(certificate, CA.make().certificates[0])


def test_serials_are_drawn() -> None:
    """No two certificates have the same serial number, each has more than 64 bits of chance and is positive."""
    authority = CA.make()
    serials = {authority.issue("worker").certificate.serial_number for _ in range(50)}
    assert len(serials) == 50
    assert all(0 < serial < 2**159 for serial in serials)
    assert max(serials) > 2**100


def test_dates_allow_for_slow_clocks() -> None:
    """A certificate begins an hour before it is made, and ends whole days after, in whole seconds of UTC."""
    zone = timezone(timedelta(hours=5))
    validity = timed(3, datetime(2026, 3, 1, 17, 0, 0, 5, tzinfo=zone))
    assert validity.begin == NOW - SKEW == datetime(2026, 3, 1, 11, 0, tzinfo=UTC)
    assert validity.end == datetime(2026, 3, 4, 12, 0, tzinfo=UTC)
    certificate = CA.make(now=NOW, days=3).certificates[0]
    assert (certificate.not_valid_before_utc, certificate.not_valid_after_utc) == (validity.begin, validity.end)


@pytest.mark.parametrize("days", [0, -1, 36_501, 1.5, True, None])
def test_days_have_bounds(days: Any) -> None:
    """Days are a whole number from one to a hundred years."""
    with pytest.raises(ConfigError, match="must be an int from 1 to 36500"):
        timed(days, None)


def test_a_time_needs_a_zone() -> None:
    """A time that could be any is refused."""
    with pytest.raises(ConfigError, match=r"has no time zone \(add one, for example datetime.UTC\)"):
        timed(1, datetime(2026, 3, 1))  # noqa: DTZ001


@pytest.mark.parametrize("kind", ["ec", "rsa-2048"])
def test_another_implementation_verifies_them(kind: KeyKind) -> None:
    """The strict profile of cryptography's own verifier accepts the chain as server and as client, while it is valid."""
    authority = CA.make(key=kind, now=NOW)
    chain = authority.issue("worker", ["worker.example.org", "10.0.0.7"], now=NOW)
    builder = PolicyBuilder().store(Store(list(authority.certificates))).time(NOW)
    for name in (x509.DNSName("worker.example.org"), x509.IPAddress(ip_address("10.0.0.7"))):
        assert builder.build_server_verifier(name).verify(chain.certificate, []) == [
            chain.certificate,
            *authority.certificates,
        ]
    assert builder.build_client_verifier().verify(chain.certificate, []).chain[0] == chain.certificate
    late = PolicyBuilder().store(Store(list(authority.certificates))).time(NOW + timedelta(days=366))
    with pytest.raises(VerificationError):
        late.build_server_verifier(x509.DNSName("worker.example.org")).verify(chain.certificate, [])


def test_a_file_without_certificates() -> None:
    """The error names what was expected."""
    with pytest.raises(UsageError) as raised:
        read_certificates(b"words", "x.pem")
    assert str(raised.value) == ("there is no certificate in x.pem (give a file in PEM, with BEGIN CERTIFICATE in it)")


PEM = CA.make(now=NOW).issue("worker", now=NOW).pem


CHAIN = read_certificates(PEM, "x.pem")


def check_reading(pem: bytes) -> None:
    """Read certificates, or get one of the two errors there are."""
    try:
        found = read_certificates(pem, "x.pem")
    except UsageError as error:
        text = str(error)
    else:
        text = "" if found else "nothing"
    begin = ("a certificate in x.pem cannot be read", "there is no certificate in x.pem")
    assert not text or text.startswith(begin)


def in_pem(der: bytes) -> bytes:
    """A certificate, which may be none, in PEM."""
    return b"-----BEGIN CERTIFICATE-----\n" + base64.encodebytes(der) + b"-----END CERTIFICATE-----\n"


# What cryptography is going to refuse it reads with a warning until then.
damaged = pytest.mark.filterwarnings("ignore:Parsed a serial number")


@damaged
@given(st.data())
def test_damaged_certificates(data: st.DataObject) -> None:
    """Whatever was changed in a file, it is read or is one documented error."""
    place = data.draw(st.integers(0, len(PEM) - 1))
    check_reading(PEM[:place] + data.draw(st.binary(max_size=3)) + PEM[place + data.draw(st.integers(0, 3)) :])


@damaged
@given(st.data())
def test_damaged_der(data: st.DataObject) -> None:
    """A certificate whose content was changed inside a good frame is read or is the same error."""
    der = bytearray(CHAIN[0].public_bytes(Encoding.DER))
    for _ in range(data.draw(st.integers(1, 3))):
        der[data.draw(st.integers(0, len(der) - 1))] = data.draw(st.integers(0, 255))
    try:
        pem = x509.load_der_x509_certificate(bytes(der)).public_bytes(Encoding.PEM)
    except (ValueError, x509.InvalidVersion, CryptographyDeprecationWarning):
        # Also what cryptography reads with a warning of its own, as a serial number that is negative.
        return
    check_reading(pem)


@pytest.mark.parametrize("kind", [0x03, 0x0C], ids=["bits", "text"])
def test_a_name_that_cannot_be_read(kind: int) -> None:
    """A name whose value has an impossible kind, or does not match its kind, is the same error."""
    der = CHAIN[0].public_bytes(Encoding.DER)
    # The common name of its CA, 10 characters of UTF-8.
    name = b"\x0c\x0aredpoll CA"
    assert der.count(name) == 1
    with pytest.raises(UsageError, match=r"a certificate in x\.pem cannot be read"):
        read_certificates(in_pem(der.replace(name, bytes([kind, 10, 0xD8]) + name[3:])), "x.pem")


def test_a_name_without_a_common_name() -> None:
    """The whole subject is used."""
    assert own_name(CHAIN[0].subject) == "worker"
    place = x509.Name([x509.NameAttribute(x509.NameOID.LOCALITY_NAME, "Bern")])
    assert own_name(place) == "L=Bern"
