"""The properties files that `penstock up --secure` writes for clients."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.client import Sasl, Security, Tls
from penstock.config.properties import parse_properties
from penstock.config.secure_files import SecureFiles


@pytest.mark.parametrize("folder", ["data", "with space", "back\\slash", "ünïcode=x"])
@pytest.mark.parametrize("kind", ["client", "java_client"])
def test_both_files_are_read_as_the_same_settings(tmp_path: Path, folder: str, kind: str) -> None:
    files = SecureFiles(str(tmp_path / folder))
    Path(files.directory).mkdir(parents=True)
    Path(files.authority).write_text("-----BEGIN CERTIFICATE-----")
    text = files.client_text("h:1", "pa-ss") if kind == "client" else files.java_client_text("h:1", "pa-ss")
    properties = {p.name: p.value for p in parse_properties(text, kind)}
    assert properties["bootstrap.servers"] == "h:1"
    assert Security.from_properties(properties) == Security(
        Tls(ca_file=files.authority), Sasl("SCRAM-SHA-512", "admin", "pa-ss")
    )
