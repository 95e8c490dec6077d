"""`redpoll pki`, as its users run it."""

from __future__ import annotations

import json
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from redpoll.cli import main
from redpoll.pki import CA, Chain, dh_parameters, inspect
from tests.cli.support import refuse, run
from tests.pki.support import client_context, handshake, server_context


def pki(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run a command in this process: its exit code, output and errors."""
    with pytest.raises(SystemExit) as ended:
        main(["pki", *arguments])
    told = capfd.readouterr()
    return int(ended.value.code or 0), told.out, told.err


def objects(text: str) -> list[dict[str, Any]]:
    """The JSON objects that were printed."""
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be in an empty folder, and return the one that the commands take when they are not told."""
    monkeypatch.chdir(tmp_path)
    return Path("pki")


def test_from_nothing_to_a_handshake(tmp_path: Path) -> None:
    """In processes of their own: a CA, two nodes, and a table; what they print is the path, and the files serve."""
    done = run("pki", "init", "--dir", str(tmp_path / "x"))
    assert (done.returncode, done.stdout.decode()) == (0, f"{tmp_path / 'x' / 'ca.pem'}\n")
    assert b"CN=redpoll CA is valid until" in done.stderr
    paths = []
    for name in ("one", "two"):
        done = run("pki", "issue", name, "-d", str(tmp_path / "x"), "--names", "localhost, ::1", "--quiet")
        assert (done.returncode, done.stderr) == (0, b"")
        paths.append(Path(done.stdout.decode().strip()))
    handshake(client_context(paths[0]), server_context(paths[1]), "localhost")
    done = run("pki", "show", "-d", str(tmp_path / "x"))
    assert (done.returncode, done.stderr) == (0, b"")
    assert [line.split()[0] for line in done.stdout.decode().splitlines()[2:]] == ["ca.pem", "one.pem", "two.pem"]


def test_the_files_of_a_ca(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """`init` makes a folder 0700 with a key 0600, a certificate and the larger DH group, as the options want them."""
    code, out, _ = pki(capfd, "init", "--name", "mine", "--days", "30", "--json")
    assert code == 0
    (event,) = objects(out)
    assert (event["event"], event["file"], event["subject"]) == ("certificate", "pki/ca.pem", "CN=mine")
    assert (event["is_ca"], event["key_matches"], event["key"], event["problems"]) == (True, True, "EC P-256", [])
    assert event["days_left"] in {29, 30}
    assert sorted(path.name for path in folder.iterdir()) == ["ca.key", "ca.pem", "dh.pem"]
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "ca.key")] == [0o700, 0o600]
    assert (folder / "dh.pem").read_bytes() == dh_parameters(3072)
    assert pki(capfd, "init", "--dir", "old", "--key", "rsa-2048", "--dh", "2048")[0] == 0
    assert inspect("old/ca.pem").key == "RSA 2048"
    assert Path("old/dh.pem").read_bytes() == dh_parameters(2048)


def test_nothing_is_overwritten_without_force(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A second `init` or `issue` exits with 2 and changes nothing; with --force it makes new keys."""
    assert pki(capfd, "init")[0] == pki(capfd, "issue", "worker")[0] == 0
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for command, file in (("init", "ca.key"), ("issue", "worker.pem")):
        code, out, err = pki(capfd, command, *(["worker"] if command == "issue" else []))
        assert (code, out) == (2, "")
        assert err == f"redpoll: error: cannot write pki/{file}: File exists\nredpoll: hint: --force overwrites it\n"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert pki(capfd, "init", "--force")[0] == pki(capfd, "issue", "worker", "--force")[0] == 0
    changed = {path.name for path in folder.iterdir() if path.read_bytes() != before[path.name]}
    assert changed == {"ca.key", "ca.pem", "worker.pem"}


def test_dh_parameters_of_ones_own_stay(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A dh.pem that is there is kept, unless --force is given."""
    folder.mkdir()
    (folder / "dh.pem").write_bytes(b"mine")
    assert pki(capfd, "init")[0] == 0
    assert (folder / "dh.pem").read_bytes() == b"mine"
    assert pki(capfd, "init", "--force")[0] == 0
    assert (folder / "dh.pem").read_bytes() == dh_parameters()


def test_what_is_issued(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The names, the days and the kind of key are those that were asked for; the name alone is the default."""
    pki(capfd, "init")
    code, out, _ = pki(
        capfd, "issue", "db", "--names", "db.example.org,10.0.0.7", "--days", "9", "--key", "rsa-2048", "--json"
    )
    assert code == 0
    (event,) = objects(out)
    assert (event["file"], event["names"], event["key"]) == ("pki/db.pem", ["db.example.org", "10.0.0.7"], "RSA 2048")
    assert event["days_left"] in {8, 9}
    assert stat.S_IMODE((folder / "db.pem").stat().st_mode) == 0o600
    assert pki(capfd, "issue", "worker.example.org")[1] == "pki/worker.example.org.pem\n"
    assert Chain.load(folder / "worker.example.org.pem").names == ("worker.example.org",)


def test_a_node_is_renewed(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The file has a new certificate with the same key; a new key needs --force."""
    pki(capfd, "init")
    pki(capfd, "issue", "worker", "--names", "localhost", "--days", "3")
    old = Chain.load(folder / "worker.pem")
    assert pki(capfd, "renew", "worker")[:2] == (0, "pki/worker.pem\n")
    new = Chain.load(folder / "worker.pem")
    assert (new.names, new.key.public_key()) == (old.names, old.key.public_key())
    assert new.certificate.not_valid_after_utc > old.certificate.not_valid_after_utc + timedelta(days=360)
    code, _, err = pki(capfd, "renew", "worker", "--new-key")
    assert code == 2
    assert "--new-key overwrites the private key in pki/worker.pem" in err
    assert "add --force" in err
    assert Chain.load(folder / "worker.pem").pem == new.pem
    assert pki(capfd, "renew", "worker", "--new-key", "--force", "--days", "5")[0] == 0
    assert Chain.load(folder / "worker.pem").key.public_key() != old.key.public_key()
    assert inspect(folder / "worker.pem").days_left in {4, 5}


def test_the_ca_is_renewed(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """`renew ca` changes the CA's certificate alone; its key is changed by `init` only."""
    pki(capfd, "init", "--days", "400")
    pki(capfd, "issue", "worker")
    key, node = (folder / "ca.key").read_bytes(), (folder / "worker.pem").read_bytes()
    assert pki(capfd, "renew", "ca")[:2] == (0, "pki/ca.pem\n")
    assert inspect(folder / "ca.pem").days_left in {3649, 3650}
    assert ((folder / "ca.key").read_bytes(), (folder / "worker.pem").read_bytes()) == (key, node)
    code, _, err = pki(capfd, "renew", "ca", "--new-key", "--force")
    assert code == 2
    assert "make it with `redpoll pki init --force`" in err


def test_details_are_shown(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Named ones are shown with all facts: nodes, the CA with its key, and files by their path."""
    pki(capfd, "init")
    pki(capfd, "issue", "worker")
    (folder / "worker.pem").rename("elsewhere.pem")
    code, out, err = pki(capfd, "show", "ca", "./elsewhere.pem")
    assert (code, err) == (0, "")
    first, second = out.split("\n\n")
    assert first.startswith("pki/ca.pem\n  subject     CN=redpoll CA\n")
    assert "key         EC P-256, private key matches" in first
    assert second.startswith("elsewhere.pem\n  subject     CN=worker\n")
    assert inspect("elsewhere.pem").fingerprint in second


def test_what_cannot_be_used_makes_it_1(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """An expired certificate is told in the table, in the details and in the object, and the exit code is 1."""
    past = datetime.now(UTC) - timedelta(days=30)
    authority = CA.make(now=past)
    authority.save(folder)
    authority.issue("old", days=10, now=past).save(folder / "old.pem")
    authority.issue("good").save(folder / "good.pem")
    assert pki(capfd, "show", "good")[0] == 0
    for arguments in ([], ["old"], ["good", "old", "--json"]):
        code, out, err = pki(capfd, "show", *arguments)
        assert (code, err) == (1, "")
        assert "expired" in out
    events = objects(pki(capfd, "show", "--json")[1])
    assert {event["file"]: bool(event["problems"]) for event in events} == {
        "pki/ca.pem": False,
        "pki/good.pem": False,
        "pki/old.pem": True,
    }


def test_a_broken_file_does_not_hide_the_others(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What cannot be read is an error of its own, exit code 2, and the rest is shown."""
    pki(capfd, "init")
    pki(capfd, "issue", "worker")
    (folder / "broken.pem").write_bytes(b"words")
    (folder / ".hidden.pem").write_bytes(b"words")
    code, out, err = pki(capfd, "show")
    assert code == 2
    assert "worker.pem" in out
    assert err.count("error") == 1
    assert "there is no certificate in pki/broken.pem" in err
    code, out, _ = pki(capfd, "show", "worker", "broken", "--json")
    assert code == 2
    # The error is found while the files are read, and told before the results.
    assert [event["event"] for event in objects(out)] == ["failed", "certificate"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["issue", "worker"], "cannot read pki/ca.pem: No such file or directory"),
        (["issue", "worker"], "hint: `redpoll pki init` makes one"),
        (["show"], "no CA in pki redpoll: hint: `redpoll pki init` makes one, --dir names another folder"),
        (["show", "worker"], "cannot read pki/worker.pem: No such file or directory"),
        (["renew", "worker"], "cannot read pki/ca.pem"),
        (["init", "--days", "0"], "days=0: must be an int from 1 to 36500"),
        (["init", "--dh", "1024"], "bits=1024: has no standard group"),
        (["init", "--key", "dsa"], "--key"),
        (["init", "--name", ""], "name='': is empty"),
    ],
)
def test_what_cannot_be_carried_out_is_usage(
    folder: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    """Without a CA, and with options that cannot be, the exit code is 2 and nothing is made."""
    code, out, err = refuse(capfd, "pki", *arguments)
    assert (code, out) == (2, "")
    assert text in err
    assert not folder.exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["issue", "../x"], "name='../x': is not valid as a file name"),
        (["issue", "../x"], "pass the names of its host as --names"),
        (["issue", "ca"], "name='ca': is a file of the CA"),
        (["issue", "x", "--names", "10.0.0.300"], "names='10.0.0.300': is neither an IP address nor a DNS name"),
        (["issue", "x", "--names", "a,,b"], "names='': is not a DNS name"),
        (["issue", "x", "--days", "4000"], "days=4000: the CA 'redpoll CA' expires on"),
        (["renew", "x"], "hint: `redpoll pki issue` makes one"),
    ],
)
def test_bad_names_are_usage(folder: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], text: str) -> None:
    """Names and days that cannot be issued exit with 2, say why, and make no file."""
    pki(capfd, "init")
    code, out, err = refuse(capfd, "pki", *arguments)
    assert (code, out) == (2, "")
    assert text in err
    assert len(list(folder.iterdir())) == 3


def test_errors_are_objects_too(capfd: pytest.CaptureFixture[str]) -> None:
    """With --json an error is the event "failed", with its hint."""
    code, out, _ = pki(capfd, "issue", "worker", "--json")
    assert code == 2
    (event,) = objects(out)
    assert (event["event"], event["kind"], event["hint"]) == ("failed", "UsageError", "`redpoll pki init` makes one")


def test_what_the_system_does_not_allow_is_1(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full makes the exit code 1, and the error names the file."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "pki/ca.key")

    monkeypatch.setattr("redpoll.pki.authority.write_files", fail)
    code, out, err = pki(capfd, "init")
    assert (code, out) == (1, "")
    assert err == "redpoll: error: pki/ca.key: No space left on device\n"
