"""The token that lets clients in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from redpoll import ConfigError
from redpoll.wiring.directory.tokens import is_proof, is_token, proof_of, read_token, token_bytes


def test_text_and_bytes() -> None:
    """A token is text or bytes, or there is none."""
    assert token_bytes("sesamé") == "sesamé".encode()
    assert token_bytes(b"\x00") == b"\x00"
    assert token_bytes(None) is None


@pytest.mark.parametrize("token", ["", b"", "x" * 1025, 5])
def test_what_is_no_token(token: Any) -> None:
    """One that is empty, too long or something else is refused, and not shown."""
    with pytest.raises(ConfigError) as caught:
        token_bytes(token)
    assert "hidden" in str(caught.value)


def test_comparing() -> None:
    """The very token is taken; where there is none everything is."""
    assert is_token(b"sesame", b"sesame")
    assert not is_token(b"sesame ", b"sesame")
    assert not is_token(b"", b"sesame")
    assert is_token(b"anything", None)


def test_it_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long it takes does not tell how much of it was right."""
    compared: list[tuple[bytes, bytes]] = []

    def compare(shown: bytes, token: bytes) -> bool:
        compared.append((shown, token))
        return True

    monkeypatch.setattr("hmac.compare_digest", compare)
    assert is_token(b"x", b"sesame")
    assert compared == [(b"x", b"sesame")]


def test_a_proof() -> None:
    """It is of one token, one end, the other end, and one run of that; anything else is none, and it is not the token."""
    made = proof_of(b"sesame", b"1" * 16, b"2" * 16, b"run")
    assert is_proof(made, b"sesame", b"1" * 16, b"2" * 16, b"run")
    assert not is_proof(made, b"Sesame", b"1" * 16, b"2" * 16, b"run")
    assert not is_proof(made, b"sesame", b"2" * 16, b"1" * 16, b"run")
    assert not is_proof(made, b"sesame", b"1" * 16, b"2" * 16, b"another")
    assert not is_proof(None, b"sesame", b"1" * 16, b"2" * 16, b"run")
    assert b"sesame" not in made


def test_a_proof_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long it takes does not tell how much of it was right."""
    monkeypatch.setattr("hmac.compare_digest", lambda shown, made: shown == b"x" and len(made) == 32)
    assert is_proof(b"x", b"sesame", b"", b"", b"")


def test_a_file_of_a_token(tmp_path: Path) -> None:
    """White space around it does not count."""
    file = tmp_path / "token"
    file.write_bytes(b"  open sesame\n")
    assert read_token(str(file)) == b"open sesame"


@pytest.mark.parametrize("content", [None, b" \n", b"x" * 1025, b"x" + b" " * 5000])
def test_a_file_without_one(tmp_path: Path, content: bytes | None) -> None:
    """A file that is not there, or holds no token, is named."""
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_token(str(file))
    assert "token_file" in str(caught.value)
