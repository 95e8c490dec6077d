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
        (["fe80::1%eth0"], "names='fe80::1%eth0': has a zone (leave out %eth0)"),
        (
            ["-host"],
            "names='-host': is no DNS name (write worker.example.org or *.example.org, without a dot at the end)",
        ),
        (["host."], "names='host.': is no DNS name"),
        (["a.*.org"], "names='a.*.org': is no DNS name"),
        (["*"], "names='*': is no DNS name"),
        ([""], "names='': is no DNS name"),
        (["a" * 64], "is no DNS name"),
        ([".".join(["abcdefghi"] * 26)], "is no DNS name"),
        (["bücher.example"], "is not ASCII (write the form that DNS has, which begins with xn--)"),
        ([], "names=[]: is empty (give the DNS names and IP addresses by which the node is dialled)"),
        ("worker", "names='worker': is one name, not a list of them (give ['worker'])"),
        ([7], "names=7: is no text"),
    ],
)
def test_what_is_no_host_is_refused(names: Any, text: str) -> None:
    """The error names the one that is wrong and says how to write it."""
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
        ("../worker", "cannot be the name of a file"),
        (".worker", "cannot be the name of a file"),
        ("-worker", "cannot be the name of a file"),
        ("a b", "cannot be the name of a file"),
        ("worker\n", "has characters that cannot be printed"),
        ("CA", "is a file of the CA"),
        ("dh", "is a file of the CA"),
        ("", "is empty"),
        ("x" * 65, "has 65 characters, more than 64"),
        (None, "is no text"),
    ],
)
def test_a_node_is_named_like_a_file(name: Any, problem: str) -> None:
    """What is no name of a file everywhere, or is a file of the CA's, is refused."""
    with pytest.raises(ConfigError) as raised:
        check_file_name(name)
    assert (raised.value.field, raised.value.problem) == ("name", problem)


def test_names_of_nodes() -> None:
    """Letters, digits, dots, dashes and underscores are a name."""
    for name in ("worker", "db-1.example.org", "_x", "7", "x" * 64):
        assert check_file_name(name) == name


def test_a_subject_may_have_spaces() -> None:
    """What a CA is called is any text of 64 printable characters."""
    assert common_name("redpoll CA, Zürich").rfc4514_string() == "CN=redpoll CA\\, Zürich"
