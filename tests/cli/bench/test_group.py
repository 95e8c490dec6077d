"""The group `redpoll bench`."""

from __future__ import annotations

import pytest

from tests.cli.support import refuse


def test_it_lists_what_it_measures(capfd: pytest.CaptureFixture[str]) -> None:
    """Without a name it is usage, and each measurement is listed."""
    code, out, err = refuse(capfd, "bench")
    assert code == 2
    assert "lat" in out + err
    assert "thr" in out + err


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        ("lat local 127.0.0.1 1", "COUNT"),
        ("lat remote 127.0.0.1 127.0.0.1 1 5", "SIZE"),
        ("thr local 127.0.0.1 127.0.0.1 1", "COUNT"),
        ("thr remote 127.0.0.1", "SIZE"),
    ],
)
def test_arguments_are_those_of_the_old_programs(capfd: pytest.CaptureFixture[str], command: str, missing: str) -> None:
    """Each program takes the arguments of the old one in their order, and says which is missing."""
    code, _, err = refuse(capfd, "bench", *command.split())
    assert code == 2
    assert missing in err
