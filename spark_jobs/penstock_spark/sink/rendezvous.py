"""One transaction service for each driver's JVM: found by a file that is named for it, started where there is none.

Called by the processes in which Spark plans and commits. The file is readable by this user alone, in a directory that
is; a lock beside it lets one process start the service while others wait.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.config.addresses import parse_bootstrap
from penstock_spark.model.errors import InvalidOption
from penstock_spark.sink.driver import SinkDriver
from penstock_spark.sink.messages import PingMessage
from penstock_spark.sink.service_client import ServiceEndpoint, ServiceUnreachable, ask

HOST_VARIABLE, PORT_VARIABLE = "PENSTOCK_SPARK_SERVICE_HOST", "PENSTOCK_SPARK_SERVICE_PORT"
"""In the driver's environment: the address that executors use for it, and a fixed port where only some are open."""
LOOPBACK, EVERYWHERE = "127.0.0.1", "0.0.0.0"  # noqa: S104 (executors are elsewhere; callers need the token)
START_TIMEOUT_S = 180.0
PING_TIMEOUT_S = 60.0
MAX_FILE_BYTES = 4096


def service_of(driver: SinkDriver, starts: bool) -> ServiceEndpoint:
    """The driver's service as its own processes reach it. Raises `ServiceUnreachable` where there is none and it is
    not to be started: then the transaction in hand is gone as well."""
    directory = own_directory()
    path = directory / f"{driver.pid}-{driver.started or 0}.json"
    with locked(path.with_suffix(".lock")):
        found = read(path)
        if found is not None and answers(found):
            return found
        if not starts:
            raise ServiceUnreachable("the transaction service of this driver has ended, and its transaction with it")
        start(driver, path)
        found = read(path)
        if found is None or not answers(found):
            raise ServiceUnreachable("the transaction service was started and does not answer")
        return found


def executors_host(driver: SinkDriver, bootstrap: str) -> str:
    """Where executors reach this machine: what the environment says, what Spark was told, or the address from which
    the brokers are reached."""
    if driver.executors_are_local:
        return LOOPBACK
    given = os.environ.get(HOST_VARIABLE) or driver.settings.get("spark.driver.host")
    if given:
        return given.removeprefix("[").removesuffix("]")  # in which Spark wants addresses of IPv6
    for host, port in parse_bootstrap(bootstrap):
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind, protocol) as sock:
                sock.connect(address)  # of a datagram socket: nothing is sent
                return str(sock.getsockname()[0])
        except OSError:
            continue
    return socket.gethostname()


def start(driver: SinkDriver, path: Path) -> None:
    """Returns when it is ready. Its errors go where this process's go: into the driver's log."""
    path.unlink(missing_ok=True)
    port = os.environ.get(PORT_VARIABLE, "0")
    if not port.isdecimal() or int(port) > 65535:
        raise InvalidOption(f"{PORT_VARIABLE} is {port!r}, not a port")
    command = [sys.executable, "-m", "penstock_spark.sink.service_main", "--rendezvous", str(path)]
    command += ["--watch", str(driver.pid), "--watch-started", driver.started, "--port", port]
    command += ["--listen", LOOPBACK if driver.executors_are_local else EVERYWHERE]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}
    try:
        subprocess.run(  # noqa: S603 (this program)
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=environment,
            check=True,
            timeout=START_TIMEOUT_S,
            start_new_session=True,
        )
    except (OSError, subprocess.SubprocessError) as e:
        raise ServiceUnreachable(f"the transaction service cannot be started: {e}; the driver's log says more") from e


def read(path: Path) -> ServiceEndpoint | None:
    """None where there is no file, or one that is not to be trusted."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077 or found.st_size > MAX_FILE_BYTES:
            return None
        try:
            content = json.loads(file.read(MAX_FILE_BYTES))
            return ServiceEndpoint(LOOPBACK, int(content["port"]), bytes.fromhex(content["token"]))
        except (ValueError, KeyError, TypeError):
            return None


def answers(endpoint: ServiceEndpoint) -> bool:
    try:
        ask(endpoint, PingMessage(), PING_TIMEOUT_S)
    except ServiceUnreachable:
        return False
    return True


def own_directory() -> Path:
    """Raises `ServiceUnreachable` where somebody else has it, or could look inside."""
    path = Path(tempfile.gettempdir()) / f"penstock-spark-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise ServiceUnreachable(f"{path} must be a directory of this user's alone (mode 0700): remove it")
    return path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
