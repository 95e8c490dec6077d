"""Which endpoint a call is for, and who may call it."""

from __future__ import annotations

from typing import Any

import pytest

from redpoll.bus.rpc import AccessPolicy, ExplicitAccessPolicy, LegacyAccessPolicy, Target, expected_exceptions, expose
from redpoll.bus.rpc.endpoints import Endpoints, MethodKind
from redpoll.errors import ConfigError, RemoteError

POLICY = AccessPolicy()


class Plain:
    """Without a target."""

    value = 3

    async def one(self) -> str:
        """A coroutine function."""
        return "plain"

    def two(self) -> str:
        """A plain function."""
        return "two"

    @staticmethod
    async def three() -> Any:
        """An asynchronous generator."""
        yield 1

    async def _hidden(self) -> None:
        """Not for callers."""

    @property
    def boom(self) -> int:
        """A property is not to be read."""
        raise AssertionError


class Named:
    """With a namespace and a version."""

    target = Target(namespace="n", version="2.3", legacy_namespaces=("old", None))

    async def one(self) -> str:
        """The same name."""
        return "named"

    async def four(self) -> None:
        """Another name."""


class Other(Named):
    """A later version in the same namespace."""

    target = Target(namespace="n", version="3.1")


def test_methods_are_found_by_namespace_and_version() -> None:
    """O-09, oslo 13: namespace, legacy namespaces and version choose the endpoint; the first that has the method is it."""
    plain, named, other = Plain(), Named(), Other()
    found = Endpoints([plain, named, other], POLICY).find
    assert found("one", None, None).function == plain.one
    assert found("one", "n", "2.1").function == named.one
    assert found("one", "old", "2.3").function == named.one
    assert found("one", None, "2.0").function == named.one
    assert found("four", "n", "3.0").function == other.four
    for method, namespace, version, kind in (
        ("one", "n", "2.4", "UnsupportedVersion"),
        ("one", "n", "4.0", "UnsupportedVersion"),
        ("one", "Name2", None, "UnsupportedVersion"),
        ("four", None, None, "NoSuchMethod"),
        ("nope", "n", "2.3", "NoSuchMethod"),
        ("value", None, None, "NoSuchMethod"),
        ("boom", None, None, "NoSuchMethod"),
        ("_hidden", None, None, "NoSuchMethod"),
        ("__init__", None, None, "NoSuchMethod"),
        (None, None, None, "NoSuchMethod"),
    ):
        with pytest.raises(RemoteError) as caught:
            found(method, namespace, version)
        assert caught.value.kind == kind


def test_how_a_method_is_run_is_seen_once() -> None:
    """Coroutine functions, plain functions, asynchronous generators and functions that take messages are told apart."""
    endpoints = Endpoints([Plain(), print], POLICY)
    kinds = [endpoints.find(name, None, None).kind for name in ("one", "two", "three", None)]
    assert kinds == [MethodKind.COROUTINE, MethodKind.PLAIN, MethodKind.STREAM, MethodKind.PLAIN]
    assert endpoints.find(None, None, None).keywords is False


def test_policies_decide_what_may_be_called() -> None:
    """Oslo 13: the three policies, and one's own; a refusal looks like a method that is not there."""

    class Marked(Plain):
        @expose
        @expected_exceptions(KeyError)
        async def shown(self) -> None:
            """Marked."""

    class Own(AccessPolicy):
        def is_allowed(self, endpoint: object, method: str) -> bool:
            return isinstance(endpoint, Plain) and method == "two"

    def names(policy: AccessPolicy) -> set[str]:
        wanted = {"one", "two", "_hidden", "shown"}
        return {name for name in wanted if name in Endpoints([Marked()], policy).plain}

    assert names(AccessPolicy()) == {"one", "two", "shown"}
    assert names(LegacyAccessPolicy()) == {"one", "two", "shown", "_hidden"}
    assert names(ExplicitAccessPolicy()) == {"shown"}
    assert names(Own()) == {"two"}
    assert Endpoints([Marked()], POLICY).find("shown", None, None).expected == (KeyError,)


def test_a_ping_is_answered_unless_the_user_has_one() -> None:
    """Oslo 13: behind all endpoints stands a ping, and a user's own comes first."""

    class Own:
        async def ping(self) -> None:
            """Mine."""

    own = Own()
    assert Endpoints([own], POLICY).find("ping", None, None).function == own.ping
    assert Endpoints([Plain()], ExplicitAccessPolicy()).find("ping", None, None).kind is MethodKind.COROUTINE


def test_what_is_no_endpoint_is_refused() -> None:
    """O-10: a target that is none, a class, nothing at all, and a policy that is none are mistakes."""

    class Wrong:
        target = "text"

    for endpoints in ([Wrong()], [Plain], []):
        with pytest.raises(ConfigError):
            Endpoints(endpoints, POLICY)
    with pytest.raises(ConfigError, match="policy"):
        Endpoints([Plain()], AccessPolicy)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [3, "add", {"add": print}, [Plain()], None])
def test_plain_values_are_no_endpoints(wrong: object) -> None:
    """What only happens to have methods is refused, and the error says what an endpoint is."""
    with pytest.raises(ConfigError, match="must be an object with methods, or a function that takes messages, not"):
        Endpoints([wrong], POLICY)
