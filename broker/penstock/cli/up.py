"""`penstock up`: checks what was asked for and gives the process over to `penstock.node`.

With `--brokers` it stays, and looks after several brokers and an etcd (`local_cluster`).
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any, Literal, NoReturn

import msgspec
import typer

from penstock.cli import up_checks
from penstock.cli.root import make_app
from penstock.config.addresses import InvalidAddress, parse_host, quoted
from penstock.config.options import DEFAULT_DATA_DIR, DEFAULT_HOST, DEFAULT_HTTP_PORT, DEFAULT_PORT, UpOptions

app = make_app()

LogLevel = Literal["debug", "info", "warning", "error", "critical"]
LogFormat = Literal["auto", "text", "json"]
CLUSTER: Any = {"rich_help_panel": "A broker of a cluster"}
LOCAL: Any = {"rich_help_panel": "A whole cluster on this machine"}
MAX_BROKERS = 32
MAX_ID = (1 << 31) - 1


def parse_settings(pairs: list[str]) -> dict[str, str]:
    """`name=value` pairs as a dict; the last of a name wins."""
    settings = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise typer.BadParameter(
                f"{quoted(pair)} is not a setting; write NAME=VALUE, such as num.partitions=6", param_hint="--set"
            )
        settings[name.strip()] = value
    return settings


def check_host_option(host: str) -> str:
    """The host without brackets. An invalid one is a usage error."""
    try:
        return parse_host(host)
    except InvalidAddress as e:
        raise typer.BadParameter(str(e)) from None


@app.command()
def up(
    data: Annotated[
        str, typer.Option("--data", metavar="DIR", help="Where everything is kept; made where it is missing.")
    ] = DEFAULT_DATA_DIR,
    host: Annotated[
        str,
        typer.Option(
            help="The address to listen on; 0.0.0.0 for all (nobody has to log in: mind who can reach it).",
            callback=check_host_option,
        ),
    ] = DEFAULT_HOST,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port for clients; 0 picks a free one.")
    ] = DEFAULT_PORT,
    http_host: Annotated[str, typer.Option(help="The address for HTTP.", callback=check_host_option)] = DEFAULT_HOST,
    http_port: Annotated[
        int,
        typer.Option(min=-1, max=65535, help="The port for health and metrics; 0 picks a free one, -1 serves none."),
    ] = DEFAULT_HTTP_PORT,
    listener: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME://HOST:PORT", help="A listener, instead of --host and --port; may be repeated."),
    ] = None,
    advertise: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME://HOST:PORT",
            help="What clients of a listener are told to connect to, where that is another address; may be repeated.",
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any broker setting, by Kafka's name; may be repeated."),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option("--config", metavar="FILE", help="A TOML file of settings; ./penstock.toml, if there is one."),
    ] = None,
    log_level: Annotated[LogLevel, typer.Option(help="The least important log lines to write.")] = "info",
    log_format: Annotated[
        LogFormat, typer.Option(help="auto writes text on a terminal and JSON elsewhere; both to standard error.")
    ] = "auto",
    id_: Annotated[
        int | None,
        typer.Option(
            "--id", min=0, max=MAX_ID, help="The broker's number, unlike all others of its cluster.", **CLUSTER
        ),
    ] = None,
    etcd: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="Join the cluster whose state is in this etcd, http(s)://HOST:PORT; may be repeated, for each member.",
            **CLUSTER,
        ),
    ] = None,
    etcd_user: Annotated[str | None, typer.Option(metavar="NAME", help="Who to log in to etcd as.", **CLUSTER)] = None,
    etcd_password_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="A file that holds the password for that.", **CLUSTER)
    ] = None,
    etcd_ca: Annotated[
        str | None, typer.Option(metavar="FILE", help="PEM: who signs the certificates of etcd's members.", **CLUSTER)
    ] = None,
    etcd_cert: Annotated[
        str | None, typer.Option(metavar="FILE", help="PEM: this broker's certificate for etcd.", **CLUSTER)
    ] = None,
    etcd_key: Annotated[
        str | None, typer.Option(metavar="FILE", help="PEM: that certificate's private key.", **CLUSTER)
    ] = None,
    brokers: Annotated[
        int | None,
        typer.Option(
            min=1, max=MAX_BROKERS, help="Run a whole cluster on this machine: that many brokers and an etcd.", **LOCAL
        ),
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="With --brokers: start again what ends by itself.", **LOCAL)
    ] = False,
) -> None:
    """Run a broker in this process: no other service, nothing to set up first.

    When it serves, it prints one line on standard output: `ready kafka=HOST:PORT http=HOST:PORT`. SIGTERM or Ctrl-C
    end it in good order. One process at a time may use a data directory.

    With `--etcd` it is one broker of a cluster, and needs an `--id`. With `--brokers 3` three brokers and an etcd run
    until SIGTERM or Ctrl-C, for development; ports count up from --port and --http-port, data is in DIR/1, DIR/2,
    DIR/3 and DIR/etcd, and the ready line adds `bootstrap=` and `etcd=`.

    Settings come from `--config` (or ./penstock.toml), then PENSTOCK_SET_* variables (PENSTOCK_SET_NUM_PARTITIONS sets
    num.partitions), then `--set`; the later wins.

    Examples:

    - `penstock up`
    - `penstock up --data /var/lib/penstock --set num.partitions=6 --set log.retention.hours=48`
    - `penstock up --port 0 --http-port 0` (free ports; read them from the ready line)
    - `penstock up --listener IN://127.0.0.1:9092 --listener OUT://0.0.0.0:9093 --advertise OUT://queue.example.com:9093`
    - `penstock up --etcd http://10.0.0.1:2379 --id 1 --data /var/lib/penstock --host 10.0.0.11`
    - `penstock up --brokers 3 --data /tmp/cluster`
    """
    settings = parse_settings(set_ or [])
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
        log_level=log_level,
        log_format=log_format,
    )
    if brokers is not None:
        run_local_cluster(options, brokers, restart)
    up_checks.check(options, restart)
    run_in_place_of_this(options)


def run_local_cluster(options: UpOptions, brokers: int, restart: bool) -> NoReturn:
    """Ends this process when the cluster has ended."""
    up_checks.check_local_cluster(options, brokers)
    # Loads what one broker's start need not wait for.
    from penstock.cli.common import CommandError, fail
    from penstock.cli.local_cluster import command
    from penstock.cli.local_cluster.plan import LocalCluster

    try:
        raise typer.Exit(command.run(LocalCluster(options, brokers, restart)))
    except CommandError as e:
        fail(str(e), e.code)


def run_in_place_of_this(options: UpOptions) -> NoReturn:
    """Turns this process into the broker's, under the same number: what the command line took, ten megabytes, goes."""
    command = [sys.executable, "-m", "penstock.node", msgspec.json.encode(options).decode()]
    os.execv(sys.executable, command)  # noqa: S606
