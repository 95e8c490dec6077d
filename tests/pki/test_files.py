"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from redpoll.errors import UsageError
from redpoll.pki.files import SIZE_LIMIT, File, make_folder, read_file, write_files
from tests.cli.support import environment


def mode(path: Path) -> int:
    """The permissions of a file."""
    return stat.S_IMODE(path.stat().st_mode)


def names(folder: Path) -> list[str]:
    """The names of all files in a folder."""
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(params=[0o022, 0o000, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Any:
    """Run with several umasks."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_modes(tmp_path: Path, umask: int) -> None:
    """Private files are 0600 and folders 0700 whatever the umask; it applies to public files."""
    folder = tmp_path / "a" / "pki"
    make_folder(folder)
    write_files([File(folder / "key", b"secret"), File(folder / "pem", b"known", private=False)])
    assert (mode(folder), mode(folder / "key"), mode(folder / "pem")) == (0o700, 0o600, 0o644 & ~umask)
    assert ((folder / "key").read_bytes(), (folder / "pem").read_bytes()) == (b"secret", b"known")
    assert names(folder) == ["key", "pem"]


def test_private_from_the_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: int) -> None:
    """The file is made with mode 0600, new, before anything is written; its mode is never changed."""
    seen = []
    fdopen = os.fdopen

    def look(descriptor: int, *arguments: Any) -> Any:
        status = os.fstat(descriptor)
        seen.append((stat.S_IMODE(status.st_mode), status.st_size))
        return fdopen(descriptor, *arguments)

    monkeypatch.setattr(os, "fdopen", look)
    monkeypatch.setattr(os, "fchmod", None)
    monkeypatch.setattr(os, "chmod", None)
    write_files([File(tmp_path / "key", b"secret")])
    assert seen == [(0o600, 0)]


def test_an_existing_file_stays(tmp_path: Path) -> None:
    """Without force nothing is overwritten, and the files before it are removed."""
    (tmp_path / "second").write_bytes(b"old")
    with pytest.raises(UsageError) as raised:
        write_files([File(tmp_path / "first", b"1"), File(tmp_path / "second", b"2")])
    assert str(raised.value) == f"cannot write {tmp_path / 'second'}: File exists (`force` overwrites it)"
    assert names(tmp_path) == ["second"]
    assert (tmp_path / "second").read_bytes() == b"old"


def test_a_dangling_link_is_not_followed(tmp_path: Path) -> None:
    """A link is something that exists; with force it is replaced, and what it points to is left alone."""
    link, target = tmp_path / "key", tmp_path / "target"
    link.symlink_to(target)
    with pytest.raises(UsageError):
        write_files([File(link, b"secret")])
    write_files([File(link, b"secret")], force=True)
    assert not link.is_symlink()
    assert not target.exists()


def test_force_overwrites(tmp_path: Path) -> None:
    """With force the file is another one with mode 0600; a process that has the old one open still reads that."""
    path = tmp_path / "key"
    path.write_bytes(b"old")
    path.chmod(0o644)
    with path.open("rb") as old:
        write_files([File(path, b"new")], force=True)
        assert old.read() == b"old"
    assert (path.read_bytes(), mode(path)) == (b"new", 0o600)


@pytest.mark.parametrize("step", ["fsync", "replace", "link"])
@pytest.mark.parametrize("force", [False, True])
def test_a_failure_leaves_the_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, force: bool) -> None:
    """When the disk is full the file has its old content, or is not there, and nothing is left beside it."""
    path = tmp_path / "key"
    if force:
        path.write_bytes(b"old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    if step == "replace":
        monkeypatch.setattr(Path, "replace", fail)
    else:
        monkeypatch.setattr(os, step, fail)
    happens = step == "fsync" or (step == "replace") == force
    if happens:
        with pytest.raises(OSError, match="No space left"):
            write_files([File(path, b"new")], force=force)
    else:
        write_files([File(path, b"new")], force=force)
    assert path.exists() == (force or not happens)
    if path.exists():
        assert path.read_bytes() == (b"old" if happens else b"new")
    assert names(tmp_path) == (["key"] if path.exists() else [])


@pytest.mark.parametrize("step", ["fsync", "replace", "link", "unlink"])
@pytest.mark.parametrize("force", [False, True])
def test_a_killed_process_leaves_the_old_or_the_new(tmp_path: Path, step: str, force: bool) -> None:
    """Wherever a process ends, the file is missing or complete, temporary files are 0600, and a retry works."""
    path = tmp_path / "key"
    if force:
        path.write_bytes(b"old")
    script = (
        "import os, pathlib\n"
        "from redpoll.pki.files import File, write_files\n"
        f"place = os if {step!r} in ('fsync', 'link') else pathlib.Path\n"
        f"setattr(place, {step!r}, lambda *_, **__: os._exit(7))\n"
        f"write_files([File(pathlib.Path({str(path)!r}), b'new')], force={force})\n"
    )
    done = subprocess.run([sys.executable, "-c", script], env=environment())
    assert done.returncode == (0 if (step, force) in {("replace", False), ("link", True)} else 7)
    assert (path.read_bytes() if path.exists() else b"none") in {b"old" if force else b"none", b"new"}
    assert {mode(left) for left in tmp_path.iterdir() if left != path} <= {0o600}
    write_files([File(path, b"newer")], force=True)
    assert path.read_bytes() == b"newer"


def test_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All content is synchronized before the first file has its name, and the folder after the last."""
    steps: list[str] = []
    fsync, link = os.fsync, os.link

    def synced(descriptor: int) -> None:
        steps.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def linked(source: Path, path: Path) -> None:
        steps.append(path.name)
        link(source, path)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "link", linked)
    write_files([File(tmp_path / "key", b"1"), File(tmp_path / "pem", b"2")])
    assert steps == ["file", "file", "key", "pem", "folder"]


def test_where_folders_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that does not open folders, as Windows, writes files all the same."""
    opened = os.open

    def no_folders(path: Path, flags: int, mode: int = 0o777) -> int:
        if Path(path).is_dir():
            raise PermissionError(13, "Permission denied")
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", no_folders)
    write_files([File(tmp_path / "key", b"1")])
    assert (tmp_path / "key").read_bytes() == b"1"


def test_a_secret_is_not_shown(tmp_path: Path) -> None:
    """The content is not in the repr."""
    assert "hidden" not in repr(File(tmp_path / "key", b"hidden"))


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    """The error names the file and the reason."""
    (tmp_path / "pki").write_bytes(b"")
    for folder in (tmp_path / "pki", tmp_path / "pki" / "below"):
        with pytest.raises(UsageError, match=r"cannot be a folder: .* \(choose another folder\)"):
            make_folder(folder)


def test_a_folder_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    """Its mode is not changed."""
    tmp_path.chmod(0o755)
    make_folder(tmp_path)
    assert mode(tmp_path) == 0o755


def test_what_cannot_be_read(tmp_path: Path) -> None:
    """A file that is missing, is a folder or has no end is an error with the hint; its size is bounded."""
    for path, problem in (
        (tmp_path / "none", f"cannot read {tmp_path / 'none'}: No such file or directory (make it)"),
        (tmp_path, f"cannot read {tmp_path}: Is a directory (make it)"),
        (Path("/dev/zero"), f"/dev/zero is not a file of certificates: it has more than {SIZE_LIMIT} bytes (make it)"),
    ):
        with pytest.raises(UsageError) as raised:
            read_file(path, "make it")
        assert str(raised.value) == problem
