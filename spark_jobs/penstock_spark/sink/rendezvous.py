"""One transaction service for each driver JVM, found by a file named after the JVM, and started if it is missing.

Called by the processes in which Spark plans and commits. Only this user can read the file and its directory. A lock
beside it lets one process start the service while others wait.
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
from penstock_spark.sink.service_client import ServiceEndpoint, ServiceUnreachable, call_service

HOST_VARIABLE, PORT_VARIABLE = "PENSTOCK_SPARK_SERVICE_HOST", "PENSTOCK_SPARK_SERVICE_PORT"
"""Driver environment variables: the host name that executors use for the driver, and a fixed port, for firewalls."""
LOOPBACK, ANY_ADDRESS = "127.0.0.1", "0.0.0.0"  # noqa: S104 (executors are elsewhere; callers need the token)
START_TIMEOUT_S = 180.0
PING_TIMEOUT_S = 60.0
MAX_FILE_BYTES = 4096


def find_service(driver: SinkDriver, starts: bool) -> ServiceEndpoint:
    """Return the endpoint of the driver's service for its own processes.

    Raises `ServiceUnreachable` if it does not run and must not be started: the open transaction is lost with it.
    """
    directory = own_directory()
    path = directory / f"{driver.pid}-{driver.started or 0}.json"
    with locked(path.with_suffix(".lock")):
        found = read(path)
        if found is not None and responds(found):
            return found
        if not starts:
            raise ServiceUnreachable("the transaction service of this driver has ended, and its transaction is lost")
        start(driver, path)
        found = read(path)
        if found is None or not responds(found):
            raise ServiceUnreachable("the transaction service was started but does not respond; see the driver's log")
        return found


def executors_host(driver: SinkDriver, bootstrap: str) -> str:
    """Return the address of this machine for executors: from the environment, from Spark's settings, or the local
    address of a route to the brokers."""
    if driver.executors_are_local:
        return LOOPBACK
    given = os.environ.get(HOST_VARIABLE) or driver.settings.get("spark.driver.host")
    if given:
        return given.removeprefix("[").removesuffix("]")  # Spark writes IPv6 addresses in brackets
    for host, port in parse_bootstrap(bootstrap):
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind, protocol) as sock:
                sock.connect(address)  # a datagram socket: nothing is sent
                return str(sock.getsockname()[0])
        except OSError:
            continue
    return socket.gethostname()


def start(driver: SinkDriver, path: Path) -> None:
    """Start the service and wait until it is ready. Its errors go to the driver's log, like those of this process."""
    path.unlink(missing_ok=True)
    port = os.environ.get(PORT_VARIABLE, "0")
    if not port.isdecimal() or int(port) > 65535:
        raise InvalidOption(f'environment variable {PORT_VARIABLE}: invalid port "{port}"; use 0 to 65535')
    command = [sys.executable, "-m", "penstock_spark.sink.service_main", "--rendezvous", str(path)]
    command += ["--watch", str(driver.pid), "--watch-started", driver.started, "--port", port]
    command += ["--listen", LOOPBACK if driver.executors_are_local else ANY_ADDRESS]
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
        raise ServiceUnreachable(f"cannot start the transaction service: {e}; see the driver's log") from e


def read(path: Path) -> ServiceEndpoint | None:
    """Return the endpoint in a file; None if there is no file or it is not trustworthy."""
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


def responds(endpoint: ServiceEndpoint) -> bool:
    """Return whether the service responds."""
    try:
        call_service(endpoint, PingMessage(), PING_TIMEOUT_S)
    except ServiceUnreachable:
        return False
    return True


def own_directory() -> Path:
    """Return the directory of this user's files. Raises `ServiceUnreachable` if other users have access to it."""
    path = Path(tempfile.gettempdir()) / f"penstock-spark-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise ServiceUnreachable(f'directory "{path}" must belong to this user with mode 0700; remove it')
    return path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
