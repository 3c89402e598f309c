"""`penstock up`: checks what was asked for and gives the process over to `penstock.node`."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Literal, NoReturn

import msgspec
import typer

from penstock.cli.root import make_app
from penstock.config.options import DEFAULT_DATA_DIR, DEFAULT_HOST, DEFAULT_HTTP_PORT, DEFAULT_PORT, UpOptions

app = make_app()

LogLevel = Literal["debug", "info", "warning", "error", "critical"]
LogFormat = Literal["auto", "text", "json"]


def parse_settings(pairs: list[str]) -> dict[str, str]:
    """`name=value` pairs as a dict; the last of a name wins."""
    settings = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise typer.BadParameter(
                f"{pair!r} is no setting: write name=value, such as num.partitions=6", param_hint="--set"
            )
        settings[name.strip()] = value
    return settings


@app.command()
def up(
    data: Annotated[
        str, typer.Option("--data", metavar="DIR", help="Where everything is kept; made where it is missing.")
    ] = DEFAULT_DATA_DIR,
    host: Annotated[
        str,
        typer.Option(help="The address to listen on; 0.0.0.0 for all (nobody has to log in: mind who can reach it)."),
    ] = DEFAULT_HOST,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port for clients; 0 picks a free one.")
    ] = DEFAULT_PORT,
    http_host: Annotated[str, typer.Option(help="The address for HTTP.")] = DEFAULT_HOST,
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
) -> None:
    """Run a broker in this process: no other service, nothing to set up first.

    When it serves, it prints one line on standard output: `ready kafka=HOST:PORT http=HOST:PORT`. SIGTERM or Ctrl-C
    end it in good order. One process at a time may use a data directory.

    Settings come from `--config` (or ./penstock.toml), then PENSTOCK_SET_* variables (PENSTOCK_SET_NUM_PARTITIONS sets
    num.partitions), then `--set`; the later wins.

    Examples:

    - `penstock up`
    - `penstock up --data /var/lib/penstock --set num.partitions=6 --set log.retention.hours=48`
    - `penstock up --port 0 --http-port 0` (free ports; read them from the ready line)
    - `penstock up --listener IN://127.0.0.1:9092 --listener OUT://0.0.0.0:9093 --advertise OUT://queue.example.com:9093`
    """
    options = UpOptions(
        data_dir=data,
        host=host,
        port=port,
        http_host=http_host,
        http_port=None if http_port < 0 else http_port,
        listeners=listener or [],
        advertise=advertise or [],
        config_file=config,
        settings=parse_settings(set_ or []),
        log_level=log_level,
        log_format=log_format,
    )
    run_in_place_of_this(options)


def run_in_place_of_this(options: UpOptions) -> NoReturn:
    """Turns this process into the broker's, under the same number: what the command line took, ten megabytes, goes."""
    command = [sys.executable, "-m", "penstock.node", msgspec.json.encode(options).decode()]
    os.execv(sys.executable, command)  # noqa: S606
