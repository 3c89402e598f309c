"""`penstock up`: checks its options, then replaces this process with `penstock.node`.

With `--brokers` it stays and supervises several brokers and an etcd (`local_cluster`).
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any, Literal, NoReturn

import msgspec
import typer

from penstock.cli import up_checks
from penstock.cli.parameters import parse_settings
from penstock.cli.root import make_app
from penstock.config.addresses import InvalidAddress, parse_host, quoted
from penstock.config.options import DEFAULT_DATA_DIR, DEFAULT_HOST, DEFAULT_HTTP_PORT, DEFAULT_PORT, UpOptions

app = make_app()

LogLevel = Literal["debug", "info", "warning", "error", "critical"]
LogFormat = Literal["auto", "text", "json"]
CLUSTER: Any = {"rich_help_panel": "Cluster broker"}
LOCAL: Any = {"rich_help_panel": "Local cluster"}
MAX_BROKERS = 32
MAX_ID = (1 << 31) - 1


def check_host_option(host: str) -> str:
    """Return the host without brackets. Raises `typer.BadParameter` if it is invalid."""
    try:
        return parse_host(host)
    except InvalidAddress as e:
        raise typer.BadParameter(str(e)) from None


@app.command()
def up(
    data: Annotated[
        str, typer.Option("--data", metavar="DIR", help="Data directory; created if missing.")
    ] = DEFAULT_DATA_DIR,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on; 0.0.0.0 for all interfaces (without --secure, restrict access).",
            callback=check_host_option,
        ),
    ] = DEFAULT_HOST,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port for clients; 0 picks a free port.")] = DEFAULT_PORT,
    http_host: Annotated[str, typer.Option(help="Address for HTTP.", callback=check_host_option)] = DEFAULT_HOST,
    http_port: Annotated[
        int,
        typer.Option(min=-1, max=65535, help="Port for health and metrics; 0 picks a free port, -1 disables HTTP."),
    ] = DEFAULT_HTTP_PORT,
    listener: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME://HOST:PORT", help="Listener, instead of --host and --port; may be repeated."),
    ] = None,
    advertise: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME://HOST:PORT",
            help="Address of a listener that is advertised to clients, if it differs; may be repeated.",
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Broker setting, by its Kafka name; may be repeated."),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            "--config", metavar="FILE", help="TOML file of settings (default: ./penstock.toml, if it exists)."
        ),
    ] = None,
    bootstrap_user: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Name of the first administrator, created with SCRAM credentials when the cluster first starts.",
        ),
    ] = None,
    bootstrap_password_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="File that contains the first administrator's password.")
    ] = None,
    log_level: Annotated[LogLevel, typer.Option(help="Minimum log level.")] = "info",
    log_format: Annotated[
        LogFormat, typer.Option(help="Log format on standard error; auto: text on a terminal, JSON elsewhere.")
    ] = "auto",
    id_: Annotated[
        int | None,
        typer.Option("--id", min=0, max=MAX_ID, help="Broker id, unique in the cluster.", **CLUSTER),
    ] = None,
    etcd: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="Join the cluster that is stored in this etcd, http(s)://HOST:PORT; may be repeated.",
            **CLUSTER,
        ),
    ] = None,
    etcd_user: Annotated[str | None, typer.Option(metavar="NAME", help="User name for etcd.", **CLUSTER)] = None,
    etcd_password_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="File that contains the etcd user's password.", **CLUSTER)
    ] = None,
    etcd_ca: Annotated[
        str | None, typer.Option(metavar="FILE", help="CA certificate of the etcd servers (PEM).", **CLUSTER)
    ] = None,
    etcd_cert: Annotated[
        str | None, typer.Option(metavar="FILE", help="Client certificate for etcd (PEM).", **CLUSTER)
    ] = None,
    etcd_key: Annotated[
        str | None, typer.Option(metavar="FILE", help="Private key of the client certificate (PEM).", **CLUSTER)
    ] = None,
    secure: Annotated[
        bool,
        typer.Option(
            "--secure",
            help="Serve TLS with passwords only: generate certificates and an administrator in the data directory.",
        ),
    ] = False,
    brokers: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_BROKERS, help="Run a local cluster with this many brokers and one etcd.", **LOCAL),
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="With --brokers: restart processes that exit.", **LOCAL)
    ] = False,
) -> None:
    """Run a broker. A single broker needs no other service and no setup.

    Once the broker serves requests, it prints one line to standard output: `ready kafka=HOST:PORT http=HOST:PORT`.
    SIGTERM and Ctrl-C shut it down cleanly. Only one process can use a data directory at a time.

    With `--secure`, clients need TLS and a password, and may do what ACLs allow. The broker writes the settings of its
    administrator to DIR/client.properties (and DIR/client-java.properties), and logs their paths.

    With `--etcd` the broker joins a cluster and needs an `--id`. With `--brokers 3`, three brokers and an etcd run
    until SIGTERM or Ctrl-C, for development: ports count up from --port and --http-port, data is stored in DIR/1,
    DIR/2, DIR/3 and DIR/etcd, and the ready line adds `bootstrap=` and `etcd=`.

    Settings come from `--config` (or ./penstock.toml), then PENSTOCK_SET_* variables (PENSTOCK_SET_NUM_PARTITIONS sets
    num.partitions), then `--set`; later ones take precedence.

    Examples:

    - `penstock up`
    - `penstock up --data /var/lib/penstock --set num.partitions=6 --set log.retention.hours=48`
    - `penstock up --secure --data DIR`, then `penstock status --config DIR/client.properties`
    - `penstock up --port 0 --http-port 0` (picks free ports; see the ready line)
    - `penstock up --listener IN://:92 --listener OUT://:93 --set listener.security.protocol.map=IN:PLAINTEXT,OUT:SSL`
    - `penstock up --etcd http://10.0.0.1:2379 --id 1 --data /var/lib/penstock --host 10.0.0.11`
    - `penstock up --brokers 3 --data /tmp/cluster`
    """
    settings = parse_settings(set_ or [], "--set", "num.partitions=6")
    if id_ is not None:
        up_checks.set_id(settings, id_)
    options = UpOptions(
        data_dir=data,
        host=host,
        port=port,
        http_host=http_host,
        http_port=None if http_port < 0 else http_port,
        listeners=listener or [],
        advertise=advertise or [],
        config_file=config,
        settings=settings,
        etcd=etcd or [],
        etcd_user=etcd_user,
        etcd_password_file=etcd_password_file,
        etcd_ca_file=etcd_ca,
        etcd_cert_file=etcd_cert,
        etcd_key_file=etcd_key,
        bootstrap_user=bootstrap_user,
        bootstrap_password_file=bootstrap_password_file,
        log_level=log_level,
        log_format=log_format,
    )
    if secure:
        up_checks.check_secure(options, brokers)
    if brokers is not None:
        run_local_cluster(options, brokers, restart)
    up_checks.check(options, restart)
    exec_broker(make_secure(options) if secure else options)


def run_local_cluster(options: UpOptions, brokers: int, restart: bool) -> NoReturn:
    """Run a local cluster and exit when it has ended."""
    up_checks.check_local_cluster(options, brokers)
    # Imported here: starting a single broker does not need these.
    from penstock.cli.common import CommandError, fail
    from penstock.cli.local_cluster import command
    from penstock.cli.local_cluster.plan import LocalCluster

    try:
        raise typer.Exit(command.run(LocalCluster(options, brokers, restart)))
    except CommandError as e:
        fail(str(e), e.code)


def make_secure(options: UpOptions) -> UpOptions:
    """Return the options of a secured broker, whose certificates and administrator are in the data directory."""
    # Imported here: other brokers start without these.
    from penstock.cli.secure.setup import secure_options

    try:
        return secure_options(options)
    except OSError as e:
        print(f"penstock up: cannot use the data directory {quoted(options.data_dir)}: {e}", file=sys.stderr)
        raise typer.Exit(1) from None


def exec_broker(options: UpOptions) -> NoReturn:
    """Replace this process with the broker, keeping the pid. Frees the 10 MB of the command line's imports."""
    command = [sys.executable, "-m", "penstock.node", msgspec.json.encode(options).decode()]
    os.execv(sys.executable, command)  # noqa: S606
