"""Writes the properties files of clients of a broker that `penstock up --secure` starts."""

from __future__ import annotations

import os

from penstock.config.options import UpOptions
from penstock.config.secure_files import SecureFiles
from penstock.node.settings import StartError
from penstock.runtime.logging import get_logger
from penstock.runtime.private_files import write_private

log = get_logger("penstock.node")


def write_client_files(options: UpOptions, address: str) -> None:
    """Write the files for clients that connect to `address`, and log their paths. Raises `StartError`."""
    files = SecureFiles(os.path.abspath(options.data_dir))
    try:
        with open(files.password, encoding="utf-8") as file:
            password = file.read().removesuffix("\n")
        write_private(files.client, files.client_text(address, password))
        write_private(files.java_client, files.java_client_text(address, password))
    except (OSError, UnicodeError) as e:
        raise StartError(f"cannot write the files of --secure for clients: {e}") from e
    log.info("wrote the administrator's client settings", client=files.client, java_client=files.java_client)
