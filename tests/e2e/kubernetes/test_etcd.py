"""The release's etcd with TLS: it rejects clients without a certificate."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from penstock_kubernetes.kubectl import CommandFailed
from penstock_kubernetes.release import CLUSTERS, NAME, TOPICS, Make, Release

pytestmark = pytest.mark.full


def openssl(*arguments: str, cwd: Path) -> None:
    subprocess.run(["openssl", *arguments], cwd=cwd, check=True, capture_output=True)


def certificate(folder: Path, name: str, names: list[str]) -> None:
    """Create NAME.crt and NAME.key for servers and clients, signed by ca.crt, which is created if missing."""
    if not (folder / "ca.crt").exists():
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        openssl(
            "req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.crt", "-days", "2", "-subj", "/CN=e2e", cwd=folder
        )
    openssl(
        *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}"),
        cwd=folder,
    )
    usage = "extendedKeyUsage=serverAuth,clientAuth\n"
    (folder / f"{name}.ext").write_text(
        usage + (f"subjectAltName={','.join(f'DNS:{n}' for n in names)}\n" if names else "")
    )
    openssl(
        *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial"),
        *("-days", "2", "-out", f"{name}.crt", "-extfile", f"{name}.ext"),
        cwd=folder,
    )


@pytest.fixture(scope="module")
def release(make_release: Make, tmp_path_factory: pytest.TempPathFactory) -> Release:
    values = ("etcd.companion.tlsSecret=etcd-server", "etcd.tls.clientSecret=etcd-client")
    release: Release = make_release("tls", etcd=3, values=values)
    folder = tmp_path_factory.mktemp("certificates")
    members = [f"{NAME}-etcd-{n}" for n in range(3)]
    domains = [f"{release.namespace}.svc", f"{NAME}-etcd.{release.namespace}.svc"]
    certificate(folder, "etcd-server", [f"{member}.{domain}" for member in members for domain in domains])
    certificate(folder, "etcd-client", [])
    for name in ("etcd-server", "etcd-client"):
        files = {"ca.crt": "ca.crt", "tls.crt": f"{name}.crt", "tls.key": f"{name}.key"}
        options = [f"--from-file={key}={folder / path}" for key, path in files.items()]
        release.kubectl("create", "secret", "generic", name, *options)
    release.install()
    return release


def test_a_cluster_whose_etcd_asks_for_certificates_becomes_ready_and_takes_topics(release: Release) -> None:
    assert release.kubectl.get(CLUSTERS, release.cluster)["spec"]["etcd"]["endpoints"][0].startswith("https://")  # type: ignore[index]
    release.kubectl.apply(release.topic("by-tls", partitions=1))
    release.kubectl.wait(TOPICS, "by-tls")
    release.penstock("produce", "by-tls", stdin="one\n")
    assert release.penstock("consume", "by-tls").split() == ["one"]


def test_a_client_without_a_certificate_is_rejected(release: Release) -> None:
    script = (
        "import ssl, sys, urllib.request as u; c = ssl.create_default_context(); c.check_hostname = False; "
        "c.verify_mode = ssl.CERT_NONE; u.urlopen(sys.argv[1], context=c, timeout=10)"
    )
    url = f"https://{NAME}-etcd-0.{release.namespace}.svc:2379/version"
    with pytest.raises(CommandFailed, match=r"(?i)certificate required|alert|reset|EOF"):
        release.kubectl("exec", f"{release.cluster}-broker-0", "-c", "broker", "--", "python", "-c", script, url)
