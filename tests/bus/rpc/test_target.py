"""Targets, versions, and the names of queues."""

from __future__ import annotations

import pytest

from redpoll.bus.rpc.target import Target, accepts, queue_name, queue_spec, subject_name
from redpoll.errors import ConfigError, UsageError


def test_a_target_is_copied_with_other_fields() -> None:
    """Oslo 13: a copy has the fields that were given, None too, and keeps the others, legacy namespaces as well."""
    target = Target("t", server="s", exchange="x", namespace="n", version="1.2", legacy_namespaces=("old", None))
    assert target(server=None) == Target(
        "t", exchange="x", namespace="n", version="1.2", legacy_namespaces=("old", None)
    )
    assert target(topic="u")(version="2.0")(version=None).version is None
    assert target() == target
    assert hash(target()) == hash(target)
    with pytest.raises(UsageError, match="hosts"):
        target(hosts=1)


def test_names_cannot_be_mistaken() -> None:
    """No two targets of different exchange, topic or server have one queue."""
    made = [
        Target("a.b"),
        Target("a", server="b"),
        Target("b", exchange="a"),
        Target("a/b"),
        Target("c", exchange="a", server="b"),
    ]
    assert len({queue_name(each) for each in made}) == len(made)
    assert queue_name(made[-1]) == "rpc:/a/c.@b"
    assert subject_name(made[-1]) == "rpc./a/c"
    spec = queue_spec("rpc:a")
    assert (spec.kind, spec.durable, spec.expires) == ("rpc", False, 60.0)


@pytest.mark.parametrize(
    "fields",
    [
        {"topic": ""},
        {"topic": "/a"},
        {"topic": "@a"},
        {"topic": "a.@b"},
        {"topic": "a:b"},
        {"topic": "a.*"},
        {"topic": "a", "exchange": "a/b"},
        {"topic": "a", "server": "x:1"},
        {"version": "5"},
        {"version": "5.a"},
        {"version": "5.5.a"},
    ],
)
def test_what_cannot_be_a_name_or_a_version_is_refused(fields: dict[str, str]) -> None:
    """Oslo 13: a version has to be numbers; a name must not look like another one's parts."""
    with pytest.raises(ConfigError, match=r"version|topic|exchange|server"):
        Target(**fields)  # type: ignore[arg-type]


def test_a_target_needs_a_topic() -> None:
    """A target without a topic can neither be served nor called."""
    with pytest.raises(ConfigError, match="topic"):
        Target.of(Target(server="s"))
    assert Target.of("t", "s") == Target("t", server="s")


@pytest.mark.parametrize(
    ("offered", "wanted", "does"),
    [
        ("1.0", "1.0", True),
        ("1.5", "1.4", True),
        ("1.5", "1.6", False),
        ("2.0", "1.0", False),
        ("1.0", "2.0", False),
        ("1.5.3", "1.5.3", True),
        ("1.5.3", "1.5.4", False),
        ("1.5", "1.5.1", False),
        ("1.6", "1.5.9", True),
        ("1.5", "x", False),
    ],
)
def test_versions_fit(offered: str, wanted: str, does: bool) -> None:
    """Oslo 13: the major version is the same, the minor one not less, nor the revision where that decides."""
    assert accepts(offered, wanted) is does
