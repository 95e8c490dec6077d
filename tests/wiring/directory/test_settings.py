"""The file of settings of a directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from redpoll import Address, UsageError
from redpoll.wiring.directory.entries import Entry
from redpoll.wiring.directory.settings import Settings, read_settings

WHOLE = """
host = "10.0.0.1"
port = 5000
lease = 30
token_file = "token"
tls = "/etc/pki/directory.pem"
ca = "system"
plain = false

[[exchange]]
name = "PRICES"
address = "10.0.0.5:4000"
style = "balance"

[[exchange]]
name = "NEWS"
address = "news.example.org:4000"

[[queue]]
name = "PRICES"
address = "[fe80::1]:4001"
"""


def write(folder: Path, text: str | bytes) -> str:
    """A file with this in it."""
    file = folder / "directory.toml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(file)


def test_a_whole_file(tmp_path: Path) -> None:
    """Options and names are read; files that it names are beside it."""
    assert read_settings(write(tmp_path, WHOLE)) == Settings(
        host="10.0.0.1",
        port=5000,
        lease=30.0,
        token_file=str(tmp_path / "token"),
        tls="/etc/pki/directory.pem",
        ca="system",
        plain=False,
        entries=(
            Entry("exchange", "PRICES", Address("tcp", "10.0.0.5", 4000), "balance", static=True),
            Entry("exchange", "NEWS", Address("tcp", "news.example.org", 4000), static=True),
            Entry("queue", "PRICES", Address("tcp", "fe80::1", 4001), static=True),
        ),
    )


def test_an_empty_file(tmp_path: Path) -> None:
    """A file may say nothing."""
    assert read_settings(write(tmp_path, "")) == Settings()


def named(text: str) -> str:
    """A queue of some name."""
    return f'[[queue]]\nname = {text}\naddress = "10.0.0.1:5"\n'


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("host = 5", "host: must be text"),
        ('host = ""', "host: must be text"),
        ("port = -1", "port: must be 0 to 65535"),
        ("port = true", "port: must be"),
        ('port = "5682"', "port: must be"),
        ("lease = 0", "lease: must be 0.1 to 3600 seconds"),
        ("lease = nan", "lease: must be"),
        ("token_file = 5", "token_file: must be text"),
        ("plain = 1", "plain: must be true or false"),
        ("prot = 1", "prot: there is no such option (there are host, port, lease"),
        ("exchange = 5", "exchange: is no list of tables (write [[exchange]] above each)"),
        ("queue = [5]", "queue: is no list of tables"),
        ('[queue]\nname = "Q"', "queue: is no list of tables"),
        ("[[queue]]", "queue[0].name: it is missing"),
        ('[[queue]]\nname = "Q"', "queue[0].address: it is missing"),
        (named('"Q"') + named("5"), "queue[1].name: the name of a queue must be text"),
        (named('""'), "queue[0].name: the name of a queue must have 1 to 255 bytes"),
        (named('"Q"') + named('"Q"'), "queue[1].name: 'Q' is there twice"),
        (named('"Q"') + 'style = "balance"', "queue[0].style: there is no such key (there are name, address)"),
        ('[[queue]]\nname = "Q"\naddress = "nowhere"', "queue[0].address: 'nowhere' has no port"),
        ('[[queue]]\nname = "Q"\naddress = 5', "queue[0].address: an address must be text"),
        (
            '[[queue]]\nname = "Q"\naddress = "0.0.0.0:5"',
            "queue[0].address: 0.0.0.0:5: a wildcard address cannot be dialled",
        ),
        (
            '[[exchange]]\nname = "E"\naddress = "a:5"\nstyle = "x"',
            "exchange[0].style: 'x' is no style (there are dist",
        ),
        ("host", "this is no TOML"),
        (b"\xff", "this is no TOML"),
    ],
)
def test_mistakes(tmp_path: Path, text: str | bytes, problem: str) -> None:
    """What cannot be meant is an error that names the file and the key."""
    path = write(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        read_settings(path)
    assert str(caught.value).startswith(f"{path}: {problem}")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """Then the system's reason is told, with the name of the file."""
    with pytest.raises(UsageError, match=r"cannot read .*none\.toml: No such file"):
        read_settings(str(tmp_path / "none.toml"))


def test_a_file_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a file that is no file of settings no more is read than one may have."""
    monkeypatch.setattr("redpoll.wiring.directory.settings._MAX_FILE", 1024 * 1024)
    with pytest.raises(UsageError, match="it has more than 1 MiB"):
        read_settings(write(tmp_path, b"#" * (1024 * 1024 + 1)))
