"""Pytest hooks and options for the whole checkout."""

from __future__ import annotations

import gc
import operator
import os
import random
import re
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Kits register the secrets that they make, so that no log or answer contains one.
sys.path.append(str(Path(__file__).parent / "broker" / "tests" / "security"))
pytest_plugins = ["secrets_kit"]

FIXED_SEED = "0"
FEWER_EXAMPLES = "penstock-fewer"
"""The Hypothesis profile of `make unit`, for tests that do not set their number of examples; others run 100."""
OUTSIDE = {"socket.bind", "socket.connect", "subprocess.Popen", "os.fork", "os.posix_spawn"}
"""Audit events that a unit test must not cause."""
MEMORY, LEAST_ROOM = Path("/dev/shm"), 2 << 30  # noqa: S108
"""Where unit tests write, which flush to disk more often than they compute: they are no tests of a disk."""
PREFIX = "penstock-unit-"
IN_MEMORY = pytest.StashKey[str]()
EXCLUDED_MODULE = re.compile(rb"^pytestmark\b.*\bmark\.(?:integration|slow)\b", re.MULTILINE)
"""A module without unit tests. With `--unit` it is not imported: the clients that it imports take most of that time."""

# In "importlib" mode pytest names a test by its path, `operator.tests.topics.test_x`, and replaces a parent module
# without `__path__` by a package: other code would lose the standard library's `operator`.
operator.__path__ = [str(Path(__file__).parent / "operator")]  # type: ignore[attr-defined]

# A script's background jobs ignore SIGINT, and their children inherit that: tests that send SIGINT would fail.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="write golden files anew: look at what git says then")
    parser.addoption("--seed", default=FIXED_SEED, help="seed of randomised tests: a number, or 'fresh' (default: 0)")
    parser.addoption(
        "--unit",
        action="store_true",
        help="exclude tests marked integration or slow; others may not use sockets",
    )


def refuse_outside(event: str, arguments: tuple[object, ...]) -> None:
    """Fail a test that opens a socket or starts a process without the integration marker (audit hook of `--unit`)."""
    if event in OUTSIDE:
        raise RuntimeError(f"a unit test causes {event}: mark it with pytest.mark.integration")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Choose the seed, and the folder for temporary files of unit tests.

    A default run draws the same inputs each time, so that it fails only if the code changed.
    """
    if config.option.seed == "fresh":
        config.option.seed = str(random.SystemRandom().randrange(1 << 32))  # xdist passes it to its workers
    settings.register_profile(
        "penstock",
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        derandomize=config.option.seed == FIXED_SEED,
    )
    settings.register_profile(FEWER_EXAMPLES, settings.get_profile("penstock"), max_examples=25)
    settings.load_profile("penstock")
    if config.option.unit and config.option.basetemp is None and has_room(MEMORY):
        remove_abandoned(MEMORY)
        config.option.basetemp = config.stash[IN_MEMORY] = tempfile.mkdtemp(
            prefix=f"{PREFIX}{os.getpid()}-", dir=MEMORY
        )
    config.addinivalue_line("markers", "integration: opens sockets or starts processes; not in `make unit`")
    config.addinivalue_line("markers", "slow: takes more than a second; not in `make unit`")


def has_room(folder: Path) -> bool:
    """Return whether it exists and has room for the files of all unit tests."""
    if not os.access(folder, os.W_OK):
        return False
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize >= LEAST_ROOM


def remove_abandoned(folder: Path) -> None:
    """Remove what processes left that were killed; it would take memory until the machine restarts."""
    for left in folder.glob(f"{PREFIX}*"):
        if not Path("/proc", left.name.removeprefix(PREFIX).partition("-")[0]).exists():
            shutil.rmtree(left, ignore_errors=True)


def pytest_unconfigure(config: pytest.Config) -> None:
    if (folder := config.stash.get(IN_MEMORY, None)) is not None:
        shutil.rmtree(folder, ignore_errors=True)


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {config.option.seed}"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    is_test = collection_path.suffix == ".py" and collection_path.name.startswith("test_")
    if config.option.unit and is_test and EXCLUDED_MODULE.search(collection_path.read_bytes()):
        return True
    return None


def pytest_collection(session: pytest.Session) -> None:
    gc.disable()  # until all is collected: what collecting loads stays until the end


def pytest_collection_finish(session: pytest.Session) -> None:
    # What collecting has loaded stays until the end: the garbage collector need not visit it in each of its passes.
    gc.enable()
    gc.collect()
    gc.freeze()
    if session.config.option.unit and not session.config.option.collectonly:
        sys.addaudithook(refuse_outside)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed `random` and reset the log configuration, independent of earlier tests in this process."""
    random.seed(f"{item.config.option.seed} {item.nodeid.partition('@')[0]}")
    if "structlog" in sys.modules:
        sys.modules["structlog"].reset_defaults()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run tests of the same xdist_group in one process, one after the other.

    pytest-xdist (3.8) appends the group to a test name that pytest (9.2) no longer uses, and then spreads the tests
    over all processes. This hook appends it to the name in use.
    """
    if config.option.unit:
        excluded = {item for item in items if any(map(item.get_closest_marker, ("integration", "slow")))}
        config.hook.pytest_deselected(items=list(excluded))
        items[:] = [item for item in items if item not in excluded]
    if not getattr(config.option, "loadgroup", False):
        return
    start_long_modules_first(items)
    for item in items:
        groups = sorted({str(mark.args[0]) for mark in item.iter_markers("xdist_group")})
        suffix = f"@{'_'.join(groups)}"
        if groups and not item.nodeid.endswith(suffix):
            item._id = type(item._id).parse(item.nodeid + suffix)  # type: ignore[attr-defined]


def start_long_modules_first(items: list[pytest.Item]) -> None:
    """Sort modules by the time limit of their slowest test: a process that starts a long group last ends long after the
    others."""
    limits: dict[Path, float] = {}
    for item in items:
        marker = item.get_closest_marker("timeout")
        limit_s = float(marker.args[0]) if marker is not None and marker.args else 0.0
        limits[item.path] = max(limits.get(item.path, 0.0), limit_s)
    items.sort(key=lambda item: -limits[item.path])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print why a test was rerun; the line with its name does not include the reason."""
    for report in terminalreporter.stats.get("rerun", []):
        causes = [line for line in report.longreprtext.splitlines() if "Caused by" in line or line.startswith("E  ")]
        terminalreporter.write_line(f"{report.nodeid} was run again after {report.duration:.0f} s:")
        for line in causes[:20]:
            terminalreporter.write_line(f"  {line[:600]}")  # Spark names the reason behind its query's ids
