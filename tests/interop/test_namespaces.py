"""Network namespaces for the tests: two machines, which leave nothing behind."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.interop.namespaces import NEEDED, two_namespaces

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.interop


def addresses(*within: str) -> str:
    """Those of this machine, or of where a command runs."""
    shown = subprocess.run([*within, "ip", "-brief", "address"], capture_output=True, text=True, check=True)
    return shown.stdout


def test_they_are_two_machines() -> None:
    """Each has an address of its own, which this machine does not have, on a cable whose other end is the other."""
    with two_namespaces() as both:
        for each in both:
            assert each.host in addresses(*each.within)
            assert each.host not in addresses()
        left, right = both
        route = [*left.within, "ip", "route", "get", right.host, "from", left.host]
        found = subprocess.run(route, capture_output=True, text=True, check=True)
        assert "dev cable" in found.stdout


def test_they_are_removed_after_a_failure() -> None:
    """Nothing is left of two namespaces when what went on in them failed."""
    names: list[str] = []

    def fail() -> None:
        with two_namespaces() as both:
            names.extend(each.name for each in both)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    assert names
    assert not any(name in left.stdout for name in names)


def test_what_is_needed_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where no namespace can be made the tests fail, and say what they need."""
    refusing = tmp_path / "ip"
    refusing.write_text("#!/bin/sh\necho Operation not permitted >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(pytest.fail.Exception, match="Operation not permitted") as caught, two_namespaces():
        pass
    assert NEEDED in str(caught.value)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(pytest.fail.Exception, match="iproute2"), two_namespaces():
        pass
