"""What `penstock up --secure` creates, reuses, renews and refuses."""

from __future__ import annotations

import socket
import stat
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import typer
from cryptography import x509

from penstock.cli.secure.authority import CERTIFICATE_LIFE
from penstock.cli.secure.setup import secure_options
from penstock.config.options import UpOptions
from penstock.config.secure_files import SecureFiles

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def options(tmp_path: Path) -> UpOptions:
    return UpOptions(data_dir=str(tmp_path / "data"))


def content(options: UpOptions) -> dict[str, str]:
    files = SecureFiles(options.data_dir)
    paths = (files.authority, files.authority_key, files.server, files.password)
    return {Path(path).name: Path(path).read_text() for path in paths}


def names(options: UpOptions) -> set[str]:
    """Return the hosts of the broker's certificate."""
    certificate = x509.load_pem_x509_certificate(Path(SecureFiles(options.data_dir).server).read_bytes())
    alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(name.value) for name in alternatives}


def test_a_first_start_creates_files_that_only_their_owner_can_read(options: UpOptions) -> None:
    secured = secure_options(options, NOW)
    files = SecureFiles(options.data_dir)
    assert stat.S_IMODE(Path(files.directory).stat().st_mode) == 0o700
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in Path(files.directory).iterdir()} == dict.fromkeys(
        ("ca.pem", "ca.key", "server.pem", "admin.password"), 0o600
    )
    assert len(content(options)["admin.password"].strip()) >= 24
    assert (secured.bootstrap_user, secured.bootstrap_password_file) == ("admin", files.password)


def test_the_broker_has_one_listener_with_tls_and_passwords_and_an_authorizer(options: UpOptions) -> None:
    secured = secure_options(replace(options, host="::", port=9095), NOW)
    assert secured.listeners == ["SASL_SSL://[::]:9095"]
    assert secured.settings == {
        "listener.security.protocol.map": "SASL_SSL:SASL_SSL",
        "ssl.keystore.location": SecureFiles(options.data_dir).server,
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "authorizer.class.name": "StandardAuthorizer",
        "super.users": "User:admin",
    }


def test_the_certificate_is_valid_for_this_host_and_for_what_is_advertised(options: UpOptions) -> None:
    listeners = ["IN://10.0.0.7:1", "OUT://0.0.0.0:2"]
    secured = secure_options(replace(options, listeners=listeners, advertise=["OUT://queue.example.com:9"]), NOW)
    assert names(options) == {
        "localhost", "127.0.0.1", "::1", socket.gethostname(), "10.0.0.7", "queue.example.com"
    }  # fmt: skip
    assert secured.settings["listener.security.protocol.map"] == "IN:SASL_SSL,OUT:SASL_SSL"


def test_a_second_start_reuses_everything(options: UpOptions) -> None:
    secure_options(options, NOW)
    before = content(options)
    secure_options(options, NOW + CERTIFICATE_LIFE * 0.6)
    assert content(options) == before


def test_the_certificate_is_renewed_in_time_by_the_same_authority(options: UpOptions) -> None:
    secure_options(options, NOW)
    before = content(options)
    secure_options(options, NOW + CERTIFICATE_LIFE * 0.7)
    after = content(options)
    assert after.pop("server.pem") != before.pop("server.pem")
    assert after == before


def test_a_new_advertised_host_gets_a_certificate(options: UpOptions) -> None:
    secure_options(options, NOW)
    secure_options(replace(options, settings={"advertised.listeners": "SASL_SSL://new.example.com:1"}), NOW)
    assert "new.example.com" in names(options)


def test_an_old_authority_is_replaced_with_the_certificate(options: UpOptions) -> None:
    secure_options(options, NOW)
    before = content(options)
    secure_options(options, NOW + timedelta(days=3000))
    after = content(options)
    assert after["admin.password"] == before["admin.password"]
    assert {name for name in after if after[name] != before[name]} == {"ca.pem", "ca.key", "server.pem"}


def test_a_lost_certificate_is_issued_again(options: UpOptions) -> None:
    secure_options(options, NOW)
    Path(SecureFiles(options.data_dir).server).unlink()
    Path(SecureFiles(options.data_dir).authority).unlink()
    secure_options(options, NOW)
    assert "localhost" in names(options)


def test_a_new_authority_issues_a_new_certificate(options: UpOptions) -> None:
    secure_options(options, NOW)
    before = content(options)
    Path(SecureFiles(options.data_dir).authority_key).unlink()
    secure_options(options, NOW)
    after = content(options)
    assert {name for name in after if after[name] != before[name]} == {"ca.pem", "ca.key", "server.pem"}


def test_settings_that_the_user_gives_take_precedence(options: UpOptions) -> None:
    secured = secure_options(replace(options, settings={"super.users": "User:admin;User:ops"}), NOW)
    assert secured.settings["super.users"] == "User:admin;User:ops"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"listeners": ["PLAINTEXT://127.0.0.1:1"]}, 'listener "PLAINTEXT://127.0.0.1:1" cannot be used with --secure'),
        ({"listeners": ["nonsense"]}, "the listener's name is missing"),
        ({"advertise": ["SASL_SSL://host"]}, "the port is missing"),
    ],
)
def test_what_cannot_be_secured_is_refused(options: UpOptions, changes: dict[str, list[str]], why: str) -> None:
    with pytest.raises(typer.BadParameter) as caught:
        secure_options(replace(options, listeners=changes.get("listeners", []), advertise=changes.get("advertise", [])))
    assert why in str(caught.value)


def test_a_host_that_no_certificate_can_name_is_refused(options: UpOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "a" * 70)
    with pytest.raises(typer.BadParameter, match=r"cannot issue a certificate for .*; correct the host"):
        secure_options(options, NOW)


@pytest.mark.parametrize("name", ["ca.key", "server.pem", "admin.password"])
def test_a_damaged_file_is_named_and_not_replaced(options: UpOptions, name: str) -> None:
    secure_options(options, NOW)
    path = Path(SecureFiles(options.data_dir).directory, name)
    path.write_bytes(b"")
    with pytest.raises(typer.BadParameter, match=name):
        secure_options(options, NOW)
    assert path.read_bytes() == b""
