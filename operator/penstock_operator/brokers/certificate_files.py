"""Client certificates as files, which OpenSSL requires. Used by `admin_connection` and `tls_prober`."""

from __future__ import annotations

import os
import shutil
import tempfile

from penstock.client import Tls
from penstock_operator.ports.brokers import ClientCertificate


class CertificateFiles:
    """A directory with a certificate and its key, which only this process's user can read, until `remove`. In the
    operator's pod it is on an emptyDir volume."""

    def __init__(self, certificate: ClientCertificate) -> None:
        self._ca = certificate.ca
        self.directory = tempfile.mkdtemp(prefix="penstock-tls-")  # mode 0700
        self.certificate_file = self._write("tls.crt", certificate.certificate)
        self.key_file = self._write("tls.key", certificate.key)

    def tls(self) -> Tls:
        """Return the client settings."""
        return Tls(ca_data=self._ca, certificate_file=self.certificate_file, key_file=self.key_file)

    def remove(self) -> None:
        """Delete the files. Idempotent."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def _write(self, name: str, text: str) -> str:
        path = os.path.join(self.directory, name)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        return path
