"""Options of the commands that connect to etcd directly. Used by `cluster_adopt` and `cluster_recover`."""

from __future__ import annotations

from typing import Annotated

import typer

EtcdUrls = Annotated[
    list[str],
    typer.Option(
        "--etcd", envvar="PENSTOCK_ETCD", metavar="URL", help="etcd endpoint, http(s)://HOST:PORT; may be repeated."
    ),
]
EtcdUser = Annotated[str | None, typer.Option(metavar="NAME", help="User name for etcd.")]
EtcdPasswordFile = Annotated[
    str | None, typer.Option(metavar="FILE", help="File that contains the etcd user's password.")
]
EtcdCa = Annotated[str | None, typer.Option(metavar="FILE", help="CA certificate of the etcd servers (PEM).")]
EtcdCert = Annotated[str | None, typer.Option(metavar="FILE", help="Client certificate for etcd (PEM).")]
EtcdKey = Annotated[str | None, typer.Option(metavar="FILE", help="Private key of the client certificate (PEM).")]
