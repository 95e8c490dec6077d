"""The limit on containers: its range, and the text of the error."""

from __future__ import annotations

import pytest

from redpoll.errors import ConfigError
from redpoll.serializers.containers import check_limit, too_many


def test_a_limit_is_checked() -> None:
    """A number is returned as it is, anything else is refused."""
    assert check_limit(1) == 1
    with pytest.raises(ConfigError, match="max_containers"):
        check_limit(0)


def test_the_error_names_the_limit_and_what_raises_it() -> None:
    """The error names the option, for correct programs that reach the limit."""
    error = too_many("json", 5_000, "JsonSerializer")
    assert str(error) == (
        "json cannot decode: it has more than 5,000 lists and dicts (JsonSerializer(max_containers=...) allows more)"
    )
