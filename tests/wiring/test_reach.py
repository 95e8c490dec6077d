"""Whether others can reach a wiring."""

from __future__ import annotations

import pytest

from redpoll import Address
from redpoll.errors import ConfigError
from redpoll.wiring.reach import WILDCARDS, advertised, check_reach, is_here

FAR = Address.parse("203.0.113.7:5682")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("example.org", ("example.org", 0)),
        ("example.org:4000", ("example.org", 4000)),
        ("192.0.2.1", ("192.0.2.1", 0)),
        ("[2001:db8::1]:4000", ("2001:db8::1", 4000)),
        ("2001:db8::1", ("2001:db8::1", 0)),
        ("[2001:db8::1]", ("2001:db8::1", 0)),
    ],
)
def test_advertised(text: str, found: tuple[str, int]) -> None:
    """It is a host, with a port or without."""
    assert advertised(text) == found


@pytest.mark.parametrize("text", ["", "a b", "unix:/x", "0.0.0.0", "::", "host:99999", 7])
def test_not_advertised(text: str) -> None:
    """What nobody can dial is refused by name."""
    with pytest.raises(ConfigError, match="advertise"):
        advertised(text)


def test_is_here() -> None:
    """Loopback is here, an address of documentation is not, and of a name it is not known."""
    assert is_here(Address.parse("127.0.0.1:1"))
    assert is_here(Address.parse("localhost:1"))
    assert is_here(Address.parse("127.0.0.9:1"))
    assert is_here(Address("unix", "/x"))
    assert is_here(FAR) is False
    assert is_here(Address.parse("example.org:1")) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "127.0.0.2", "localhost"])
def test_check_reach(host: str) -> None:
    """Loopback will not do where the directory is on another machine, be it listened at or advertised."""
    with pytest.raises(ConfigError, match="host="):
        check_reach((host,), None, FAR)
    with pytest.raises(ConfigError, match="advertise="):
        check_reach(("192.0.2.1",), (host, 0), FAR)
    check_reach((host,), ("192.0.2.1", 0), FAR)
    check_reach((host,), None, Address.parse("127.0.0.1:5682"))
    check_reach((host,), None, None)


def test_wildcards() -> None:
    """All interfaces are no loopback: the directory's link says which one."""
    for host in WILDCARDS:
        check_reach((host,), None, FAR)
