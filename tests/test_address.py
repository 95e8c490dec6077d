"""Addresses: what can be read, how it is normalised, and what is refused with which words."""

from __future__ import annotations

import copy
import ipaddress
import pickle
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from redpoll.address import MAX_UNIX_PATH, Address
from redpoll.errors import UsageError

PORTS = st.integers(0, 65_535)
LABELS = st.from_regex(r"[a-zA-Z0-9]([a-zA-Z0-9_-]{0,20}[a-zA-Z0-9])?", fullmatch=True)
NAMES = (
    st.lists(LABELS, min_size=1, max_size=4)
    .map(".".join)
    .filter(lambda name: name.lower() not in {"unix", "inproc", "tcp"})
)
SCOPES = st.from_regex(r"(%[a-z][a-z0-9.]{0,14})?", fullmatch=True)
TCP = st.one_of(
    st.builds("{}:{}".format, st.one_of(NAMES, st.ip_addresses(v=4)), PORTS),
    st.builds("[{}{}]:{}".format, st.ip_addresses(v=6), SCOPES, PORTS),
)
PRINTABLE = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=25)
ADDRESSES = st.one_of(TCP, PRINTABLE.map("unix:{}".format), PRINTABLE.map("inproc:{}".format))


@pytest.mark.parametrize(
    ("text", "kind", "host", "port", "normal"),
    [
        ("127.0.0.1:2998", "tcp", "127.0.0.1", 2998, "127.0.0.1:2998"),
        ("Example.ORG:1", "tcp", "example.org", 1, "example.org:1"),
        ("[::1]:65535", "tcp", "::1", 65_535, "[::1]:65535"),
        ("[0:0:0:0:0:0:0:1]:0", "tcp", "::1", 0, "[::1]:0"),
        ("[2001:DB8::00A]:80", "tcp", "2001:db8::a", 80, "[2001:db8::a]:80"),
        ("[::ffff:10.1.2.3]:80", "tcp", "10.1.2.3", 80, "10.1.2.3:80"),
        ("[::FFFF:0a01:0203]:80", "tcp", "10.1.2.3", 80, "10.1.2.3:80"),
        ("[fe80::1%Eth0]:80", "tcp", "fe80::1%Eth0", 80, "[fe80::1%Eth0]:80"),
        ("host:00080", "tcp", "host", 80, "host:80"),
        ("unix:/run/a node.sock", "unix", "/run/a node.sock", 0, "unix:/run/a node.sock"),
        ("unix:relative:80", "unix", "relative:80", 0, "unix:relative:80"),
        ("inproc:Prices", "inproc", "Prices", 0, "inproc:Prices"),
        ("bücher.example:5", "tcp", "bücher.example", 5, "bücher.example:5"),
    ],
)
def test_parse_reads_and_normalises(text: str, kind: str, host: str, port: int, normal: str) -> None:
    """Each form is read into kind, host and port, and written in one way."""
    address = Address.parse(text)
    assert (address.kind, address.host, address.port) == (kind, host, port)
    assert str(address) == normal


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "'' has no port (an address is 'host:port', '[IPv6]:port', 'unix:PATH' or 'inproc:NAME')"),
        ("host", "'host' has no port (write 'host:2998')"),
        ("2998", "'2998' has no host (write '127.0.0.1:2998' for this machine)"),
        ("[::1]", "'[::1]' has no port (write '[::1]:2998')"),
        (":80", "':80' has no host (write '127.0.0.1:80' for this machine)"),
        ("::1:80", "'::1:80' is ambiguous (put an IPv6 address in brackets: '[::1]:2998')"),
        ("::", "'::' is ambiguous (put an IPv6 address in brackets: '[::1]:2998')"),
        ("host:", "'host:' has no port in the range 0 to 65535"),
        ("host:http", "'host:http' has no port in the range 0 to 65535"),
        ("host:65536", "'host:65536' has no port in the range 0 to 65535"),
        ("host:-1", "'host:-1' has no port in the range 0 to 65535"),
        ("host:+1", "'host:+1' has no port in the range 0 to 65535"),
        ("host: 1", "'host: 1' has no port in the range 0 to 65535"),
        ("host:1_0", "'host:1_0' has no port in the range 0 to 65535"),
        ("host:٣", "'host:٣' has no port in the range 0 to 65535"),
        ("host:" + "9" * 5_000, "has no port in the range 0 to 65535"),
        ("[]:80", "'' is not an IPv6 address"),
        ("[127.0.0.1]:80", "'127.0.0.1' is not an IPv6 address"),
        ("[host]:80", "'host' is not an IPv6 address"),
        ("[::1:80", "'[::1:80' is ambiguous"),
        ("[fe80::1%]:80", "'fe80::1%' is not an IPv6 address"),
        (
            "[fe80::1%a b]:80",
            "'fe80::1%a b' has an invalid scope (a scope names an interface, as in 'fe80::1%eth0')",
        ),
        ("[fe80::1%a\n]:80", "has an invalid scope"),
        ("a b:80", "'a b' is not a valid host name"),
        ("a\n:80", "'a\\n' is not a valid host name"),
        ("a\x00:80", "'a\\x00' is not a valid host name"),
        ("http://host:80", "'http://host:80' is a URL (leave out 'http://': an address is 'host:port', "),
        ("tcp://[::1]:80", "'tcp://[::1]:80' is a URL"),
        ("user@host:80", "'user@host' is not a valid host name"),
        ("a..b:80", "'a..b' is not a valid host name: each part must have 1 to 63 characters"),
        ("a" * 64 + ":80", "is not a valid host name: each part must have 1 to 63 characters"),
        ("UNIX:80", "a host cannot be named 'unix' ('unix:...' is an address of that kind)"),
        ("unix:", "'unix:' has no path"),
        ("unix:/a\nb", "the path '/a\\nb' has control characters"),
        ("unix:/a\x00b", "the path '/a\\x00b' has control characters"),
        ("inproc:", "'inproc:' has no name"),
        ("inproc:a\tb", "'a\\tb' is not a valid inproc name (use letters and digits)"),
        (None, "an address must be text or an Address, not NoneType"),
        (b"host:80", "an address must be text or an Address, not bytes"),
        (("host", 80), "an address must be text or an Address, not tuple"),
    ],
)
def test_parse_refuses_what_is_no_address(text: Any, error: str) -> None:
    """Each mistake is a UsageError whose text says what is wrong and what to write."""
    with pytest.raises(UsageError) as caught:
        Address.parse(text)
    assert error in str(caught.value)


@given(ADDRESSES)
@example("[::ffff:1.2.3.4%eth0]:1")
def test_text_reads_back(text: str) -> None:
    """The text of an address is read back into an equal address with the same hash and text."""
    address = Address.parse(text)
    again = Address.parse(str(address))
    assert again == address
    assert hash(again) == hash(address)
    assert str(again) == str(address)


@given(st.one_of(st.text(max_size=60), st.text("[]:%unixproc.0123456789abc", max_size=40)))
def test_any_text_is_an_address_or_a_usage_error(text: str) -> None:
    """No text makes parse raise anything but UsageError, and what it reads can be written and read again."""
    try:
        address = Address.parse(text)
    except UsageError:
        return
    assert Address.parse(str(address)) == address


def test_parse_remembers() -> None:
    """The same text gives the same object, and an address is given back as it is."""
    first = Address.parse("127.0.0.1:4711")
    assert Address.parse("127.0.0.1:" + str(4711)) is first
    assert Address.parse(first) is first


def test_parse_remembers_a_few_thousand() -> None:
    """Of more texts than are remembered the one that was used longest ago is forgotten."""
    first, *others = (Address.parse(f"127.0.0.1:{port}") for port in range(1, 4_098))
    assert Address.parse("127.0.0.1:4097") is others[-1]
    assert Address.parse("127.0.0.1:1") == first
    assert Address.parse("127.0.0.1:1") is not first


def test_equal_addresses_are_one_key() -> None:
    """Different spellings of one address are equal and hash alike; different addresses are not."""
    assert len({Address.parse(text) for text in ("[::1]:5", "[0::1]:5", "[::0001]:5")}) == 1
    assert len({Address.parse(text) for text in ("a:5", "a:6", "b:5", "unix:a", "inproc:a")}) == 5
    assert {"127.0.0.1:5": 1}.get(Address.parse("127.0.0.1:5")) is None  # type: ignore[call-overload]


def test_addresses_sort() -> None:
    """Addresses are ordered by kind, host and port."""
    texts = ["inproc:b", "a:2", "a:10", "b:1", "unix:/a"]
    assert [str(each) for each in sorted(map(Address.parse, texts))] == ["inproc:b", "a:2", "a:10", "b:1", "unix:/a"]


def test_addresses_cannot_be_changed() -> None:
    """An address is frozen and has no room for other attributes."""
    address = Address.parse("a:1")
    with pytest.raises(AttributeError):
        address.port = 2  # type: ignore[misc]
    assert not hasattr(address, "__dict__")


@pytest.mark.parametrize("text", ["host:80", "[::1]:80", "unix:/a", "inproc:a"])
def test_addresses_pickle_and_copy(text: str) -> None:
    """A pickled, copied or deep-copied address is equal and hashes alike."""
    address = Address.parse(text)
    for twin in (pickle.loads(pickle.dumps(address)), copy.copy(address), copy.deepcopy(address)):
        assert twin == address
        assert hash(twin) == hash(address)


def test_the_hash_is_not_pickled() -> None:
    """An address from another process, where text hashes differently, is found in a dictionary here."""
    program = (
        "import pickle, sys; from redpoll.address import Address;"
        "sys.stdout.buffer.write(pickle.dumps(Address.parse('host:80')))"
    )
    made = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONHASHSEED": "1", "PYTHONPATH": ":".join(sys.path)},
        stdout=-1,
        check=True,
    )
    assert {Address.parse("host:80"): 1}[pickle.loads(made.stdout)] == 1


@pytest.mark.parametrize(
    ("text", "loopback"),
    [
        ("127.0.0.1:1", True),
        ("[::1]:1", True),
        ("[::ffff:127.0.0.1]:1", True),
        ("unix:/a", True),
        ("inproc:a", True),
        ("127.0.0.2:1", False),
        ("localhost:1", False),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("192.0.2.1:1", False),
        ("127.0.0.1.example.org:1", False),
    ],
)
def test_loopback_is_libchirps_rule(text: str, loopback: bool) -> None:
    """Loopback is exactly 127.0.0.1, ::1, unix and inproc: both ends must come to the same answer."""
    assert Address.parse(text).is_loopback is loopback


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("host:1", True),
        ("1.2.3:1", True),
        ("1.2.3.4:1", False),
        ("[::1]:1", False),
        ("unix:a", False),
        ("inproc:a", False),
    ],
)
def test_a_name_is_what_has_to_be_resolved(text: str, name: bool) -> None:
    """Only a tcp host that is no IP address is a name."""
    assert Address.parse(text).is_name is name


@pytest.mark.parametrize(
    ("host", "port", "text"),
    [
        ("127.0.0.1", 5, "127.0.0.1:5"),
        ("::1", 5, "[::1]:5"),
        ("[::1]", 5, "[::1]:5"),
        ("::", 0, "[::]:0"),
        ("Host", 5, "host:5"),
        ("unix:/a", 5, "unix:/a"),
        ("inproc:a", 5, "inproc:a"),
    ],
)
def test_of_host_takes_a_host_as_config_gives_it(host: str, port: int, text: str) -> None:
    """A host of Config and a port make an address, with IPv6 in brackets or not."""
    assert str(Address.of_host(host, port)) == text


@pytest.mark.parametrize(
    ("host", "port", "error"),
    [
        ("", 1, "a tcp address needs a host"),
        ("a:1", 1, "'a:1' has a port"),
        ("[a]", 1, "'a' is not an IPv6 address"),
        ("unix:", 1, "'unix:' has no path"),
        ("a", 65_536, "port 65536 is out of range: 0 to 65535"),
        ("a", -1, "port -1 is out of range: 0 to 65535"),
        ("a", True, "a port must be an int, not True"),
        ("a", "1", "a port must be an int, not '1'"),
        (5, 1, "a host must be text, not int"),
    ],
)
def test_of_host_refuses_what_is_no_host(host: Any, port: Any, error: str) -> None:
    """A bad host or port is a UsageError that says which."""
    with pytest.raises(UsageError) as caught:
        Address.of_host(host, port)
    assert error in str(caught.value)


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        (("udp", "a", 1), "unknown kind of address: 'udp'"),
        (("tcp", None, 1), "the host of an address must be text, not NoneType"),
        (("unix", "/a", 1), "unix addresses have no port"),
        (("inproc", "", 0), "'' is not a valid inproc name"),
    ],
)
def test_the_parts_are_checked(parts: tuple[Any, Any, Any], error: str) -> None:
    """An address made from parts that do not fit is a UsageError."""
    with pytest.raises(UsageError) as caught:
        Address(*parts)
    assert error in str(caught.value)


def test_a_unix_path_has_room_for_107_bytes() -> None:
    """The limit counts bytes, not letters, and the text says both numbers."""
    assert Address.parse("unix:" + "a" * MAX_UNIX_PATH).host == "a" * MAX_UNIX_PATH
    with pytest.raises(
        UsageError, match="unix socket path of 108 bytes is over the limit of 107 \\(use a shorter path"
    ):
        Address.parse("unix:" + "a" * (MAX_UNIX_PATH - 1) + "é")


@given(st.ip_addresses(), PORTS)
def test_of_socket_reads_what_ip_sockets_say(ip: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> None:
    """The tuples of both families give the address that its text would."""
    name = (str(ip), port) if ip.version == 4 else (str(ip), port, 0, 0)
    text = f"{ip}:{port}" if ip.version == 4 else f"[{ip}]:{port}"
    assert Address.of_socket(name) == Address.parse(text)


def test_of_socket_reads_a_mapped_address_as_ipv4() -> None:
    """A listener for both families tells IPv4 peers by their IPv4 address."""
    assert str(Address.of_socket(("::ffff:127.0.0.1", 5, 0, 0))) == "127.0.0.1:5"


def test_of_socket_names_the_scope_alike_for_every_loop() -> None:
    """The number of an interface and its name give the same address; an unknown number stays one."""
    index, name = socket.if_nameindex()[0]
    assert Address.of_socket(("fe80::1", 5, 0, index)) == Address.of_socket((f"fe80::1%{name}", 5, 0, index))
    unknown = max(each for each, _ in socket.if_nameindex()) + 10_000
    assert str(Address.of_socket(("fe80::1", 5, 0, unknown))) == f"[fe80::1%{unknown}]:5"


@pytest.mark.parametrize("name", ["/run/a.sock", b"/run/a.sock"])
def test_of_socket_reads_a_unix_path(name: str | bytes) -> None:
    """The path of a unix socket is read from text and from bytes."""
    assert Address.of_socket(name) == Address.parse("unix:/run/a.sock")


@pytest.mark.parametrize("name", ["", b"", b"\x00abstract", b"/a\nb", "a" * 108, "\x00x"])
def test_of_socket_takes_any_name_that_a_peer_can_choose(name: str | bytes) -> None:
    """A unix socket without a path that can be dialled is an address with an empty one."""
    address = Address.of_socket(name)
    assert (address.kind, address.host, address.is_loopback) == ("unix", "", True)


def test_a_path_that_is_no_utf8_survives() -> None:
    """The bytes of a path that are no text are kept, as the file system keeps them."""
    address = Address.of_socket(b"/run/\xff")
    assert Address.parse(str(address)) == address
    assert address.host == "/run/\udcff"


@pytest.mark.parametrize("name", [None, 5, (), ("127.0.0.1",)])
def test_of_socket_refuses_what_no_socket_says(name: Any) -> None:
    """Anything else is a UsageError."""
    with pytest.raises(UsageError, match="not the name of a socket"):
        Address.of_socket(name)


def test_the_longest_path_is_the_longest_that_the_system_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket can be bound to the longest path that is an address."""
    monkeypatch.chdir(tmp_path)
    address = Address.parse("unix:" + "a" * MAX_UNIX_PATH)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address.host)
        assert Address.of_socket(listener.getsockname()) == address
