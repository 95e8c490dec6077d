"""Names of nodes and hosts."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from redpoll.errors import ConfigError
from redpoll.pki.names import alternative_names, check_file_name, common_name


def test_hosts_are_dns_names_or_addresses() -> None:
    """Each is written as what it is, once, in the order given."""
    names = ["worker.example.org", "10.0.0.7", "*.example.org", "fd00::7", "my_service", "10.0.0.7"]
    assert list(alternative_names(names)) == [
        x509.DNSName("worker.example.org"),
        x509.IPAddress(ip_address("10.0.0.7")),
        x509.DNSName("*.example.org"),
        x509.IPAddress(ip_address("fd00::7")),
        x509.DNSName("my_service"),
    ]


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (
            ["10.0.0.300"],
            (
                "names='10.0.0.300': is neither an IP address nor a DNS name"
                " (write 10.0.0.7 or fd00::7, without brackets, port or network)"
            ),
        ),
        (["10.0.0.0/24"], "names='10.0.0.0/24': is neither an IP address nor a DNS name"),
        (["[::1]"], "names='[::1]': is neither an IP address nor a DNS name"),
        (["host:2998"], "names='host:2998': is neither an IP address nor a DNS name"),
        (["fe80::1%eth0"], "names='fe80::1%eth0': has a zone (omit %eth0)"),
        (
            ["-host"],
            "names='-host': is not a DNS name (write worker.example.org or *.example.org, without a dot at the end)",
        ),
        (["host."], "names='host.': is not a DNS name"),
        (["a.*.org"], "names='a.*.org': is not a DNS name"),
        (["*"], "names='*': is not a DNS name"),
        ([""], "names='': is not a DNS name"),
        (["a" * 64], "is not a DNS name"),
        ([".".join(["abcdefghi"] * 26)], "is not a DNS name"),
        (["bücher.example"], "is not ASCII (use its ASCII form, which begins with xn--)"),
        ([], "names=[]: is empty (pass the DNS names and IP addresses that the node is dialled by)"),
        ("worker", "names='worker': is a single name, not a list (pass ['worker'])"),
        ([7], "names=7: is not a str"),
    ],
)
def test_what_is_no_host_is_refused(names: Any, text: str) -> None:
    """The error names the invalid one and how to write it."""
    with pytest.raises(ConfigError) as raised:
        alternative_names(names)
    assert text in str(raised.value)
    assert raised.value.field == "names"


@given(st.text(max_size=80))
def test_any_text_is_a_host_or_an_error(text: str) -> None:
    """Whatever the text, it is one name that is written as it was given, or a ConfigError."""
    try:
        (name,) = alternative_names([text])
    except ConfigError:
        return
    assert isinstance(name, x509.DNSName | x509.IPAddress)
    assert name.value in {text, ip_address(text) if isinstance(name, x509.IPAddress) else text}


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("../worker", "is not valid as a file name"),
        (".worker", "is not valid as a file name"),
        ("-worker", "is not valid as a file name"),
        ("a b", "is not valid as a file name"),
        ("worker\n", "has unprintable characters"),
        ("CA", "is a file of the CA"),
        ("dh", "is a file of the CA"),
        ("", "is empty"),
        ("x" * 65, "has 65 characters, more than 64"),
        (None, "is not a str"),
    ],
)
def test_a_node_is_named_like_a_file(name: Any, problem: str) -> None:
    """A name that is not a valid file name everywhere, or is a file of the CA's, is rejected."""
    with pytest.raises(ConfigError) as raised:
        check_file_name(name)
    assert (raised.value.field, raised.value.problem) == ("name", problem)


def test_names_of_nodes() -> None:
    """Letters, digits, dots, dashes and underscores are a name."""
    for name in ("worker", "db-1.example.org", "_x", "7", "x" * 64):
        assert check_file_name(name) == name


def test_a_subject_may_have_spaces() -> None:
    """The name of a CA is any text of 64 printable characters."""
    assert common_name("redpoll CA, Zürich").rfc4514_string() == "CN=redpoll CA\\, Zürich"
