"""The record of certificates: valid fields and defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from redpoll import TLS, ConfigError

PIN = "sha256:" + "0a" * 32


@pytest.mark.parametrize(
    ("options", "checked"),
    [
        ({"certificate": "a.pem"}, False),
        ({"certificate": Path("a.pem"), "key": "a.key", "ca": "ca.pem", "dh_params": "dh.pem"}, False),
        ({"certificate": "a.pem", "check_names": True}, True),
        ({"certificate": "a.pem", "ca": "system"}, True),
        ({"ca": "system"}, True),
        ({"ca": "ca.pem"}, True),
        ({"ca": "ca.pem", "check_names": False}, False),
        ({"ca": "system", "check_names": False, "pins": (PIN,)}, False),
        ({"certificate": "a.pem", "pins": (PIN, "identity:" + "0f" * 16)}, False),
    ],
)
def test_what_it_takes(options: dict[str, Any], checked: bool) -> None:
    """Paths are text or paths; names are checked by those that have no certificate, or trust the system's store."""
    tls = TLS(**options)
    assert {name: getattr(tls, name) for name in options} == options
    assert tls.effective_check_names is checked


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "ca=None: no CA is trusted, and there is no certificate (set certificate= for nodes of one CA, or"),
        ({"certificate": ""}, "certificate='': must be the path of a file, or None"),
        ({"certificate": b"a.pem"}, "must be the path of a file, or None"),
        ({"ca": 5}, "ca=5: must be the path of a file"),
        ({"ca": "ca.pem", "key": "a.key"}, "key='a.key': requires a certificate"),
        ({"certificate": "a", "client_certificate": True}, "must be one of 'required', 'optional', 'none'"),
        ({"certificate": "a", "check_names": 1}, "check_names=1: must be True, False or None"),
        ({"ca": "system", "check_names": False}, "the system's trust store trusts anyone with a web site"),
        (
            {"ca": "system", "check_names": False, "pins": ("identity:" + "0f" * 16,)},
            "the system's trust store trusts anyone with a web site (omit check_names, or pin certificates)",
        ),
        ({"certificate": "a", "pins": PIN}, "must be a tuple of str"),
        ({"certificate": "a", "pins": (5,)}, "must be a tuple of str"),
        ({"certificate": "a", "pins": (PIN.upper(),)}, "is neither sha256: and 64 nor identity: and 32"),
        ({"certificate": "a", "pins": (PIN[:-1],)}, "is neither sha256: and 64 nor identity: and 32"),
        ({"certificate": "a", "pins": ("identity:00",)}, "is neither sha256: and 64 nor identity: and 32"),
    ],
)
def test_what_it_refuses(options: dict[str, Any], problem: str) -> None:
    """An invalid value is a ConfigError that names the field and the remedy."""
    with pytest.raises(ConfigError) as caught:
        TLS(**options)
    assert problem in str(caught.value)


def test_it_is_a_value() -> None:
    """It cannot be changed, and equal ones are equal."""
    tls = TLS(certificate="a.pem")
    assert tls == TLS(certificate="a.pem")
    assert hash(tls) == hash(TLS(certificate="a.pem"))
    with pytest.raises(AttributeError):
        tls.certificate = "b.pem"  # type: ignore[misc]
