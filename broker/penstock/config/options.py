"""The unchecked options of `penstock up`.

Created by the command line, read by `node`. `config.sources` merges `config_file`, the environment and `settings`, and
reports unknown names and invalid values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

LogFormat = Literal["auto", "text", "json"]

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 9092
DEFAULT_HTTP_PORT = 8080
DEFAULT_DATA_DIR = "./penstock-data"


@dataclass(frozen=True, slots=True)
class UpOptions:
    """The flags of `penstock up`.

    `port` and `http_port` 0 pick a free port; `http_port` None disables HTTP. `listeners` and `advertise` contain
    `NAME://host:port`; without `listeners` there is one on `host` and `port`. `settings` are the `--set` pairs; they
    override the environment, which overrides `config_file` (None if not given). `log_format` "auto" means text on a
    terminal and JSON elsewhere.

    `etcd` lists the endpoints of the etcd that stores the cluster's metadata; if empty, the broker is single-node and
    keeps its metadata in the data directory. TLS files are PEM; `etcd_password_file` contains the password of
    `etcd_user`.

    `bootstrap_user`, with the password in `bootstrap_password_file`, is created when the cluster starts first.

    With `secure`, the data directory has the files of `secure_files`, and the broker writes those of clients.
    """

    data_dir: str = DEFAULT_DATA_DIR
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    http_host: str = DEFAULT_HOST
    http_port: int | None = DEFAULT_HTTP_PORT
    listeners: list[str] = field(default_factory=list)
    advertise: list[str] = field(default_factory=list)
    config_file: str | None = None
    settings: dict[str, str] = field(default_factory=dict, repr=False)
    etcd: list[str] = field(default_factory=list)
    etcd_user: str | None = None
    etcd_password_file: str | None = None
    etcd_ca_file: str | None = None
    etcd_cert_file: str | None = None
    etcd_key_file: str | None = None
    bootstrap_user: str | None = None
    bootstrap_password_file: str | None = None
    secure: bool = False
    log_level: str = "info"
    log_format: LogFormat = "auto"
