from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from snapshots.snapshot_kit import RunningEtcd, object_store

from penstock_operator.pki.authority import CertificateRequest, create_authority, issue


@pytest.fixture(scope="package")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEtcd]:
    running = RunningEtcd(tmp_path_factory.mktemp("etcd"))
    running.wait()
    yield running
    running.stop()


@pytest.fixture(scope="package")
def s3() -> Iterator[str]:
    """Start an S3 server; return its address."""
    with object_store() as url:
        yield url


@pytest.fixture(scope="package")
def secured_s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Start an S3 server with TLS; return its address and its CA."""
    folder, now = tmp_path_factory.mktemp("s3"), datetime.now(UTC)
    authority = create_authority("s3", "test", now, 2)
    pair = issue(authority, CertificateRequest("s3", "test", 1, ("localhost", "127.0.0.1")), now)
    for name, text in (("ca.crt", authority.certificate), ("tls.crt", pair.certificate), ("tls.key", pair.key)):
        (folder / name).write_text(text)
    with object_store("-s", "-c", str(folder / "tls.crt"), "-k", str(folder / "tls.key")) as url:
        yield url, folder / "ca.crt"
