"""Files of client certificates."""

from __future__ import annotations

import stat
from pathlib import Path

from penstock_operator.brokers.certificate_files import CertificateFiles
from penstock_operator.ports.brokers import ClientCertificate


def test_only_this_user_can_read_the_files_until_they_are_removed() -> None:
    files = CertificateFiles(ClientCertificate("ca", "certificate", "key"))
    key, directory = Path(files.key_file), Path(files.directory)
    assert key.read_text() == "key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert "key_password" not in repr(files.tls())
    files.remove()
    files.remove()
    assert not directory.exists()
