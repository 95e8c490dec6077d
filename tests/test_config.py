"""Options: defaults, limits, what follows from them, and the errors that name them."""

from __future__ import annotations

import ast
import inspect
import pickle
import ssl
import textwrap
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redpoll import config as module
from redpoll.address import Address
from redpoll.config import Config, ConfigOptions, is_encrypted
from redpoll.errors import ConfigError, UsageError
from redpoll.serializers import JsonSerializer
from redpoll.tls import TLS

KIB, MIB = 1024, 1024 * 1024

DEFAULTS = {
    "host": "127.0.0.1",
    "port": None,
    "public_port": None,
    "listen": None,
    "backlog": 100,
    "identity": None,
    "acknowledge": True,
    "slots": None,
    "node_slots": 1024,
    "window": None,
    "window_bytes": 4 * MIB,
    "lookahead": MIB,
    "auto_release": True,
    "timeout": 5.0,
    "connect_timeout": None,
    "handshake_timeout": 10.0,
    "unclaimed_timeout": 2.0,
    "reuse_time": 30.0,
    "transfer_timeout": 30.0,
    "keepalive": 5.0,
    "dial": "retry",
    "resume": None,
    "secret": None,
    "cancel_handlers": False,
    "answer_libchirp": True,
    "max_message_size": 104_857_600,
    "fragment_size": MIB,
    "in_order": False,
    "max_connections": 10_000,
    "max_connections_per_host": 1_000,
    "memory_limit": 1024 * MIB,
    "send_queue_limit": 100_000,
    "send_queue_bytes": 64 * MIB,
    "spin": 0,
    "serializer": "raw",
    "encryption": "auto",
    "tls": None,
    "authorize": None,
}

# The smallest and the largest value of each number that has limits.
LIMITS = {
    "port": (0, 65_535),
    "public_port": (1, 65_535),
    "backlog": (1, 65_535),
    "slots": (1, 65_535),
    "node_slots": (1, 2**32 - 1),
    "window": (1, 2**32 - 1),
    "window_bytes": (1, 2**63 - 1),
    "lookahead": (0, 2**63 - 1),
    "max_message_size": (1, 2**63 - 1),
    "fragment_size": (4 * KIB, 2**30),
    "max_connections": (1, 2**32 - 1),
    "max_connections_per_host": (1, 2**32 - 1),
    "memory_limit": (1, 2**63 - 1),
    "send_queue_limit": (1, 2**32 - 1),
    "send_queue_bytes": (1, 2**63 - 1),
}

TIMES = [
    "timeout",
    "connect_timeout",
    "handshake_timeout",
    "unclaimed_timeout",
    "reuse_time",
    "transfer_timeout",
    "keepalive",
]
FLAGS = ["listen", "acknowledge", "cancel_handlers", "answer_libchirp", "in_order"]
MAY_BE_NONE = [name for name, value in DEFAULTS.items() if value is None] + [
    "timeout",
    "keepalive",
    "transfer_timeout",
    "memory_limit",
]


def _refused(**options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        Config(**options)
    assert {caught.value.field: caught.value.value} == options
    return str(caught.value)


def _taken(name: str, value: Any) -> Any:
    return getattr(Config(**{name: value}), name)


def test_the_defaults_are_the_documented_ones() -> None:
    """Every option is there, with its default, and there is no other."""
    config = Config()
    assert {each.name: getattr(config, each.name) for each in fields(Config)} == DEFAULTS


def test_type_checkers_know_every_option() -> None:
    """The keywords of a node have the names and the types of the fields."""
    known = {name: each.__forward_arg__ for name, each in ConfigOptions.__annotations__.items()}
    assert known == {each.name: each.type for each in fields(Config)}


def test_every_option_is_documented() -> None:
    """Each field is followed by a docstring of its own."""
    body = ast.parse(textwrap.dedent(inspect.getsource(Config))).body[0]
    assert isinstance(body, ast.ClassDef)
    documented = {
        here.target.id
        for here, after in zip(body.body, body.body[1:], strict=False)
        if isinstance(here, ast.AnnAssign)
        and isinstance(here.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
    }
    assert documented == set(DEFAULTS)


@pytest.mark.parametrize("name", LIMITS)
def test_numbers_have_limits(name: str) -> None:
    """Both limits are allowed, what is beyond is not, and the text says the limits."""
    low, high = LIMITS[name]
    assert _taken(name, low) == low
    assert _taken(name, high) == high
    for value in (low - 1, high + 1, -(10**30), 10**30):
        assert _refused(**{name: value}).endswith(f"must be {low} to {high}")


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("value", [True, 5.0, "5", b"5", [5]])
def test_a_number_is_an_int(name: str, value: Any) -> None:
    """Anything but an int is refused, a bool and a whole float too."""
    assert _refused(**{name: value}).endswith(f"must be an int, not {type(value).__name__}")


@pytest.mark.parametrize("name", TIMES)
def test_times_are_seconds(name: str) -> None:
    """A time is a float or an int above 0, at most a year."""
    for value in (1e-6, 1, 31_536_000):
        assert _taken(name, value) == value
    for bad in (0, 0.0, -1, float("inf"), float("-inf"), 31_536_001, 10**400):
        assert _refused(**{name: bad}).endswith("must be above 0 and at most 31536000 seconds")
    for other in (True, "5", b"", (1,)):
        assert _refused(**{name: other}).endswith(f"must be a number of seconds, not {type(other).__name__}")


@pytest.mark.parametrize("name", TIMES)
def test_a_time_is_a_number(name: str) -> None:
    """Not-a-number is refused."""
    with pytest.raises(ConfigError, match=f"^{name}=nan: must be above 0"):
        _taken(name, float("nan"))


@pytest.mark.parametrize("name", sorted(set(DEFAULTS) - set(MAY_BE_NONE)))
def test_none_is_refused_where_it_means_nothing(name: str) -> None:
    """Only the options that say what None means take it."""
    assert _refused(**{name: None}).startswith(f"{name}=None: ")


@pytest.mark.parametrize("name", MAY_BE_NONE)
def test_none_is_taken_where_it_means_something(name: str) -> None:
    """The options that say what None means take it."""
    assert _taken(name, None) is None


@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_is_true_or_false(name: str) -> None:
    """Numbers and texts are no flags."""
    assert _taken(name, False) is False
    assert _taken(name, True) is True
    for value in (0, 1, "yes"):
        assert _refused(**{name: value}).endswith(f"must be True or False, not {type(value).__name__}")


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("auto_release", (True, False, "get"), (1, 0, "pull", "", ())),
        ("dial", ("retry", "once"), ("twice", True, 1)),
        ("encryption", ("auto", True, False), ("on", 1, 0)),
    ],
)
def test_choices_are_exact(name: str, good: tuple[Any, ...], bad: tuple[Any, ...]) -> None:
    """An option with a few values takes these and names them; 1 is not True."""
    for value in good:
        assert _taken(name, value) is value
    for value in bad:
        assert _refused(**{name: value}).endswith(f"must be one of {', '.join(map(repr, good))}")


@pytest.mark.parametrize(
    "host",
    ["localhost", "::", "::1", "[::1]", "0.0.0.0", "unix:/run/a", "inproc:a", ("127.0.0.1", "::1"), ("unix:/a", "::1")],
)
def test_hosts_that_can_be_listened_on(host: str | tuple[str, ...]) -> None:
    """A name, an address of either family, a unix path, an inproc name, or several are taken."""
    config = Config(host=host)
    assert config.host == host
    assert config.hosts == (host if isinstance(host, tuple) else (host,))


@pytest.mark.parametrize(
    ("host", "problem"),
    [
        ("", "a tcp address needs a host"),
        ("127.0.0.1:80", "'127.0.0.1:80' has a port (leave it out: host and port are separate options)"),
        ("a b", "is not a valid host name"),
        ("unix:", "has no path"),
        ("unix:" + "a" * 108, "unix socket path of 108 bytes is over the limit of 107"),
        ((), "must name at least one host"),
        (("::1", "[0::1]"), "names a host twice"),
        (("::1", 5), "must be text, or a tuple of texts"),
        (["::1"], "must be text, or a tuple of texts"),
        (5, "must be text, or a tuple of texts"),
    ],
)
def test_hosts_that_cannot(host: Any, problem: str) -> None:
    """What cannot be listened on is refused with the reason."""
    text = _refused(host=host)
    assert text.startswith("host=")
    assert problem in text


@pytest.mark.parametrize("identity", [bytes(16), b"x" * 15, b"x" * 17, b"", "x" * 16, bytearray(b"x" * 16)])
def test_an_identity_is_16_bytes(identity: Any) -> None:
    """An identity of another length or type, or of zeros alone, is refused."""
    assert "must be" in _refused(identity=identity)


def test_any_other_identity_is_taken() -> None:
    """One byte that is not zero is enough."""
    assert Config(identity=bytes(15) + b"\x01").identity == bytes(15) + b"\x01"


@pytest.mark.parametrize("resume", [0, -1.0, 86_401.0, "5", True])
def test_a_session_lasts_a_day_at_most(resume: Any) -> None:
    """A time above 0 and at most a day, or None, is taken; nothing else."""
    assert "must be" in _refused(resume=resume)
    assert Config(resume=86_400.0).resume == 86_400.0


@pytest.mark.parametrize("secret", [b"0123456789abcde", b"0123456789abcdefg", "0123456789abcdef", bytearray(16)])
def test_a_secret_is_16_bytes_and_is_not_shown(secret: Any) -> None:
    """A secret of another length or type is refused; no text has it, nor that of one that is taken."""
    with pytest.raises(ConfigError, match=r"^secret=.*must be") as caught:
        Config(secret=secret)
    assert (caught.value.field, caught.value.value) == ("secret", "hidden")
    assert "89ab" not in str(caught.value)
    config = Config(secret=b"0123456789abcdef")
    assert "89ab" not in repr(config)
    assert config == Config(secret=b"0123456789abcdef") != Config()


class _Own:
    """A serializer of one's own."""

    name = "own"
    wants_buffer = False

    def encode(self, obj: bytes, /) -> bytes:
        return obj

    def decode(self, data: bytes | bytearray | memoryview, /) -> bytes:
        return bytes(data)


def test_a_serializer_is_a_name_or_an_object() -> None:
    """A name and an object with the methods are taken; a class and anything else are refused."""
    own = _Own()
    assert Config(serializer="json").serializer == "json"
    assert Config(serializer=own).serializer is own
    assert _refused(serializer="") == "serializer='': must not be empty"
    assert _refused(serializer=JsonSerializer).endswith("is a class: pass an instance")
    assert _refused(serializer=5).endswith(
        "must be the name of a serializer, or an object with name, wants_buffer, encode and decode"
    )


def test_a_port_needs_a_listener() -> None:
    """A port together with listen=False is refused, since one of them is not meant."""
    with pytest.raises(ConfigError, match=r"^port=2998: must be None with listen=False \(leave out one of them\)$"):
        Config(listen=False, port=2998)
    assert Config(listen=True, port=2998).port == 2998


def test_effective_slots_are_libchirps() -> None:
    """Unset slots are 1 when acknowledging and 16 when not; set ones are what they are."""
    assert Config().effective_slots == 1
    assert Config(acknowledge=False).effective_slots == 16
    assert Config(acknowledge=False, slots=3).effective_slots == 3


def test_effective_window_holds_the_slots() -> None:
    """An unset window is 64, or the slots where these are more; a set one is what it is."""
    assert Config().effective_window == 64
    assert Config(slots=100).effective_window == 100
    assert Config(slots=100, window=5).effective_window == 5


def test_effective_connect_timeout_follows_timeout() -> None:
    """An unset connect timeout is twice the timeout and at most a minute."""
    assert Config().effective_connect_timeout == 10.0
    assert Config(timeout=100.0).effective_connect_timeout == 60.0
    assert Config(timeout=None).effective_connect_timeout == 60.0
    assert Config(timeout=None, connect_timeout=90.0).effective_connect_timeout == 90.0


def test_effective_reuse_time_leaves_sends_their_time() -> None:
    """A link is not idle before three timeouts are over."""
    assert Config().effective_reuse_time == 30.0
    assert Config(timeout=20.0).effective_reuse_time == 60.0
    assert Config(timeout=None, reuse_time=1.0).effective_reuse_time == 1.0


def test_a_config_is_frozen() -> None:
    """A Config cannot be changed and takes no other attribute; equal options are equal Configs."""
    config = Config()
    with pytest.raises(FrozenInstanceError):
        config.timeout = 1.0  # type: ignore[misc]
    assert not hasattr(config, "__dict__")
    assert config == Config()
    assert hash(config) == hash(Config())
    assert pickle.loads(pickle.dumps(Config(slots=3))) == Config(slots=3)


def test_options_are_keywords() -> None:
    """No option has a place: there are too many to count."""
    with pytest.raises(TypeError):
        Config("127.0.0.1")  # type: ignore[call-arg]


def test_replace_changes_a_copy() -> None:
    """A replaced Config has the new values, the others, and leaves the old one alone."""
    old = Config(slots=3)
    new = old.replace(timeout=1.0)
    assert (new.slots, new.timeout) == (3, 1.0)
    assert old.timeout == 5.0


def test_replace_checks() -> None:
    """A replaced value is checked like any other."""
    with pytest.raises(ConfigError, match=r"^slots=0: must be 1 to 65535$"):
        Config().replace(slots=0)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tiemout", "tiemout=3: unknown option (did you mean 'timeout'?)"),
        ("max_msg_size", "max_msg_size=3: unknown option (did you mean 'max_message_size'?)"),
        ("zzz", "zzz=3: unknown option"),
        ("effective_slots", "effective_slots=3: unknown option"),
    ],
)
def test_an_unknown_option_is_named(name: str, text: str) -> None:
    """An unknown option is an error that names the nearest one, where one is near."""
    options: dict[str, Any] = {name: 3}
    for call in (Config().replace, lambda **options: Config.from_options(None, options)):
        with pytest.raises(ConfigError) as caught:
            call(**options)
        assert str(caught.value).startswith(text)


def test_from_options_puts_keywords_before_the_config() -> None:
    """Options go before the Config, the Config before the defaults."""
    base = Config(slots=3, timeout=1.0)
    assert Config.from_options(None, {}) == Config()
    assert Config.from_options(base, {}) is base
    assert Config.from_options(base, {"slots": 4}) == Config(slots=4, timeout=1.0)


def test_from_options_refuses_what_is_no_config() -> None:
    """A dict in the place of a Config is an error that says what to do."""
    with pytest.raises(UsageError, match=r"^config must be a Config, not dict \(pass options as keywords\)$"):
        Config.from_options({"slots": 3}, {})  # type: ignore[arg-type]


LOOPBACK = ["127.0.0.1:1", "[::1]:1", "unix:/a", "inproc:a"]
ELSEWHERE = ["192.0.2.1:1", "127.0.0.2:1", "[2001:db8::1]:1", "0.0.0.0:1", "[::]:1", "localhost:1"]


CERTIFICATES = TLS(certificate="a.pem")


def test_plaintext_off_loopback_has_to_be_meant() -> None:
    """Off loopback a node needs certificates, or encryption=False; the error names the address and both ways out."""
    for text in ELSEWHERE:
        address = Address.parse(text)
        for tls in (None, CERTIFICATES):
            assert not is_encrypted(address, Config(encryption=False, tls=tls))
        assert is_encrypted(address, Config(tls=CERTIFICATES))
        assert is_encrypted(address, Config(encryption=True, tls=CERTIFICATES))
        with pytest.raises(ConfigError) as caught:
            is_encrypted(address, Config())
        assert str(caught.value) == (
            f"encryption='auto': {address} requires TLS, but there are no certificates"
            " (pass tls=TLS(certificate=…), or encryption=False for plaintext)"
        )


def test_plaintext_on_loopback_needs_no_permission() -> None:
    """On loopback "auto" and False are plain, with certificates too; True means encrypted there as well."""
    for text in LOOPBACK:
        for tls in (None, CERTIFICATES):
            assert not is_encrypted(Address.parse(text), Config(tls=tls))
            assert not is_encrypted(Address.parse(text), Config(encryption=False, tls=tls))
    for text in LOOPBACK + ELSEWHERE:
        address = Address.parse(text)
        if address.kind == "tcp":
            assert is_encrypted(address, Config(encryption=True, tls=CERTIFICATES))
            with pytest.raises(ConfigError, match=r"^encryption=True: "):
                is_encrypted(address, Config(encryption=True))
        else:
            # It does not leave the machine.
            assert not is_encrypted(address, Config(encryption=True))


def test_certificates_are_a_record_or_two_contexts() -> None:
    """Contexts come in the order of server and client; anything else is refused."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for tls in (CERTIFICATES, (server, client), None):
        assert Config(tls=tls).tls is tls
    for wrong in ("ca.pem", server, (server,), (server, None), [server, client], TLS):
        assert "must be a redpoll.TLS, or a tuple of two SSLContexts, or None" in _refused(tls=wrong)
    assert "must be a server context, then a client context" in _refused(tls=(client, server))


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.tuples(st.text(max_size=5)),
    st.lists(st.integers(), max_size=2),
    st.builds(object),
)


@given(st.dictionaries(st.sampled_from(sorted(DEFAULTS)), ANYTHING, max_size=3))
def test_any_values_make_a_config_or_a_config_error(options: dict[str, Any]) -> None:
    """No value of any type makes Config raise anything but a ConfigError that names one of the options."""
    try:
        config = Config(**options)
    except ConfigError as error:
        refused = error
    else:
        assert {name: getattr(config, name) for name in options} == options
        assert config.effective_window >= 1
        assert config.effective_slots >= 1
        assert config.effective_connect_timeout > 0
        return
    assert refused.field in options
    assert str(refused).startswith(f"{refused.field}=")


def test_the_module_exports_what_it_says() -> None:
    """Every name in __all__ is there."""
    assert all(hasattr(module, name) for name in module.__all__)


def test_authorize_is_a_function() -> None:
    """What can be called does, and None; nothing else."""
    assert _taken("authorize", None) is None
    assert _taken("authorize", bool) is bool
    assert "must be a function, not str" in _refused(authorize="everybody")
    assert "must accept one argument, the peer: too many positional arguments" in _refused(authorize=lambda: True)


@pytest.mark.parametrize("spin", [-1, 10_001, 0.5, True, None])
def test_a_spin_is_microseconds(spin: Any) -> None:
    """An impossible spin is rejected, and the text says its unit and which value is none."""
    assert _refused(spin=spin).endswith(", in microseconds; 0 is none")
    assert (_taken("spin", 0), _taken("spin", 10_000)) == (0, 10_000)
