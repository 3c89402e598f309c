"""A certificate authority for tests, based on the `openssl` program (3.0 or newer)."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")


@dataclass(frozen=True)
class Signed:
    """Paths of a certificate and its private key, as PEM files."""

    certificate: Path
    key: Path

    @property
    def together(self) -> Path:
        """A file with the key followed by the certificate."""
        path = self.key.with_suffix(".both.pem")
        path.write_text(self.key.read_text() + self.certificate.read_text())
        return path


class Authority:
    """A certificate authority whose files are in `home`."""

    def __init__(self, home: Path, name: str = "authority") -> None:
        self.home, self.name = home, name
        home.mkdir(parents=True, exist_ok=True)
        extensions = ("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign")
        self._own = self._make(name, name, *extensions)

    @property
    def file(self) -> Path:
        """The authority's certificate, for peers to trust."""
        return self._own.certificate

    def sign(self, name: str, hosts: str = "DNS:localhost,IP:127.0.0.1", password: str | None = None) -> Signed:
        """Return a certificate for these hosts; a password encrypts its key."""
        by = ("-CA", str(self._own.certificate), "-CAkey", str(self._own.key))
        extensions = ("-addext", f"subjectAltName={hosts}", "-addext", "basicConstraints=CA:FALSE")
        return self._make(f"{self.name}-{name}", name, *by, *extensions, password=password)

    def _make(self, stem: str, subject: str, *arguments: str, password: str | None = None) -> Signed:
        made = Signed(self.home / f"{stem}.pem", self.home / f"{stem}.key")
        secret = ("-passout", f"pass:{password}") if password else ("-nodes",)
        files = ("-keyout", str(made.key), "-out", str(made.certificate))
        command = ["openssl", "req", "-x509", *KEY, *secret, "-days", "2", *files, "-subj", f"/CN={subject}"]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return made
