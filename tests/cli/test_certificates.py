"""How certificates are shown."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from redpoll.cli.certificates import details, overview, record
from redpoll.pki import Report

REPORT = Report(
    file=Path("pki/worker.pem"),
    subject="CN=worker",
    names=("worker.example.org", "10.0.0.7"),
    issuer="CN=redpoll CA",
    serial="2a",
    begin=datetime(2026, 3, 1, 11, 0, tzinfo=UTC),
    end=datetime(2027, 3, 1, 12, 0, tzinfo=UTC),
    days_left=365,
    key="EC P-256",
    key_matches=True,
    fingerprint="sha256:00ff",
    is_ca=False,
    chain_verifies=True,
    problems=(),
)


def test_details() -> None:
    """Every fact has a line, and so has every problem."""
    assert details(REPORT).splitlines() == [
        "pki/worker.pem",
        "  subject     CN=worker",
        "  names       worker.example.org, 10.0.0.7",
        "  issuer      CN=redpoll CA",
        "  serial      2a",
        "  valid       2026-03-01 11:00 to 2027-03-01 12:00 UTC, 365 days left",
        "  key         EC P-256, private key matches",
        "  chain       verifies",
        "  fingerprint sha256:00ff",
    ]
    bad = replace(
        REPORT, names=(), days_left=-1, key_matches=False, chain_verifies=False, problems=("the key is wrong", "late")
    )
    assert details(bad).splitlines()[2:] == [
        "  names       none",
        "  issuer      CN=redpoll CA",
        "  serial      2a",
        "  valid       2026-03-01 11:00 to 2027-03-01 12:00 UTC, expired",
        "  key         EC P-256, private key does not match",
        "  chain       does not verify",
        "  fingerprint sha256:00ff",
        "  problem     the key is wrong",
        "  problem     late",
    ]
    authority = details(replace(REPORT, is_ca=True, names=(), key_matches=None, days_left=1))
    assert "names" not in authority
    assert "1 day left" in authority
    assert "private key not in the file" in authority


def test_nothing_acts_upon_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """What a certificate says is shown as escapes where it would control the terminal, in lines and in the table."""
    odd = replace(REPORT, subject="CN=\x1b[2J\n", names=("\x1b[31m",), problems=("of \x1b[2J",))
    Console(width=80).print(overview([odd]))
    shown = details(odd) + capsys.readouterr().out
    assert "\x1b" not in shown
    assert r"\x1b[2J\n" in shown


def test_the_table_fits(capsys: pytest.CaptureFixture[str]) -> None:
    """Each file has a row of 80 columns with its days and its state."""
    Console(width=80).print(overview([replace(REPORT, file=Path("ca.pem"), is_ca=True), REPORT]))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["file", "names", "key", "until", "days", "state"]
    assert lines[2] == ["ca.pem", "CA", "EC", "P-256", "2027-03-01", "365", "good"]
    assert lines[3] == ["worker.pem", "worker.example.org,", "10.0.0.7", "EC", "P-256", "2027-03-01", "365", "good"]
    Console(width=80).print(overview([replace(REPORT, problems=("CN=worker expired on 2027-03-01",))]))
    assert "expired" in capsys.readouterr().out


def test_the_object() -> None:
    """The fields of the event are plain JSON, with times in ISO 8601."""
    fields = json.loads(json.dumps(record(REPORT)))
    assert fields == {
        "file": "pki/worker.pem",
        "subject": "CN=worker",
        "names": ["worker.example.org", "10.0.0.7"],
        "issuer": "CN=redpoll CA",
        "serial": "2a",
        "begin": "2026-03-01T11:00:00+00:00",
        "end": "2027-03-01T12:00:00+00:00",
        "days_left": 365,
        "key": "EC P-256",
        "key_matches": True,
        "fingerprint": "sha256:00ff",
        "is_ca": False,
        "chain_verifies": True,
        "problems": [],
    }
