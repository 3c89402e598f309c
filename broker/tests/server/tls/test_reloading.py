"""Certificates are replaced when files or settings change, under load, and kept if what replaces them is broken."""

from __future__ import annotations

import asyncio
import os
import ssl
from dataclasses import replace
from pathlib import Path

import pytest
from server_kit import Desk, Run, echo, until
from structlog.testing import capture_logs
from tls_kit import AUTHORITY, BROKER, CLIENT, Certified, Client, TlsService, certify, loaded, name, serving_tls

from penstock.config.definition import InvalidSetting
from penstock.config.listener_security import TlsSettings
from penstock.server.tls.listener_tls import ListenerTls
from penstock.server.tls.reloading import CertificateReloader

RENEWED = certify(name("broker"), AUTHORITY, days=5)


class Reloading:
    """A reloader that the test calls, of a listener with its stores in `home`."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.write(BROKER)
        self.tls = loaded(keystore_location=str(home), truststore_location=str(home))
        self.settings: TlsSettings | InvalidSetting = self.tls.settings
        self.reloader = CertificateReloader([self.tls], lambda _: self.current(), interval_s=0.01)

    def current(self) -> TlsSettings:
        if isinstance(self.settings, InvalidSetting):
            raise self.settings
        return self.settings

    def write(self, certified: Certified, authority: Certified = AUTHORITY) -> None:
        """Replace the directory's files as the kubelet does: by a new directory behind the link `..data`."""
        fresh = self.home / f"..{len(list(self.home.iterdir()))}"
        fresh.mkdir()
        for file, text in (
            ("tls.key", certified.key_pem()),
            ("tls.crt", certified.chain_pem),
            ("ca.crt", authority.chain_pem),
        ):
            (fresh / file).write_text(text)
            if not (self.home / file).is_symlink():
                (self.home / file).symlink_to(Path("..data") / file)
        link = self.home / "..new"
        link.symlink_to(fresh.name)
        link.rename(self.home / "..data")

    @property
    def state(self) -> tuple[int, int, bool]:
        return self.tls.reloads, self.tls.failed_reloads, self.tls.reload_error is not None


@pytest.fixture
def reloading(tmp_path: Path) -> Reloading:
    return Reloading(tmp_path)


def serial(client: Client) -> bytes:
    session: ssl.SSLObject = client.writer.get_extra_info("ssl_object")
    return session.getpeercert(binary_form=True) or b""


async def test_files_that_did_not_change_are_not_loaded_again(reloading: Reloading) -> None:
    contexts = reloading.tls.contexts
    reloading.write(BROKER)
    await reloading.reloader.check_all()
    assert reloading.tls.contexts is contexts
    assert reloading.state == (0, 0, False)


async def test_changed_files_are_loaded(reloading: Reloading) -> None:
    reloading.write(RENEWED)
    await reloading.reloader.check_all()
    assert reloading.tls.expires_at == RENEWED.certificate.not_valid_after_utc.timestamp()
    assert reloading.state == (1, 0, False)
    reloading.write(RENEWED, certify(name("another"), is_authority=True))
    await reloading.reloader.check_all()
    assert reloading.state == (2, 0, False)


@pytest.mark.parametrize("case", ["key of another", "garbage", "missing", "other name"])
async def test_broken_files_keep_the_old_certificate_and_are_reported_once(reloading: Reloading, case: str) -> None:
    contexts = reloading.tls.contexts
    if case == "missing":
        os.unlink(reloading.home / "..data" / "tls.crt")
    elif case == "other name":
        reloading.write(CLIENT)
    else:
        text = CLIENT.chain_pem if case == "key of another" else "x"
        (reloading.home / "..data" / "tls.crt").write_text(text)
    with capture_logs() as events:
        for _ in range(3):
            await reloading.reloader.check_all()
    assert reloading.tls.contexts is contexts
    assert reloading.state == (0, 1, True)
    assert [event["event"].partition(";")[0] for event in events] == ["certificates not reloaded"]
    reloading.write(RENEWED)
    await reloading.reloader.check_all()
    assert reloading.state == (1, 1, False)


async def test_the_old_files_put_back_are_no_failure_any_more(reloading: Reloading) -> None:
    reloading.write(CLIENT)
    await reloading.reloader.check_all()
    assert reloading.state == (0, 1, True)
    reloading.write(BROKER)
    await reloading.reloader.check_all()
    assert reloading.state == (0, 1, False)


async def test_changed_settings_apply_at_once_and_invalid_ones_are_reported(reloading: Reloading) -> None:
    reloading.reloader.interval_s = 3600
    reloading.reloader.start()
    reloading.settings = replace(reloading.tls.settings, client_auth="required")
    reloading.reloader.on_settings_changed()
    await until(lambda: reloading.tls.contexts.server.verify_mode is ssl.CERT_REQUIRED)
    reloading.settings = InvalidSetting("ssl.keystore.location is not set; set it")
    reloading.reloader.on_settings_changed()
    await until(lambda: reloading.state == (1, 1, True))
    await reloading.reloader.close()


@pytest.mark.integration
def test_requests_go_on_while_certificates_change(run: Run, tmp_path: Path) -> None:
    async def ask(service: TlsService, client: Client, answered: list[int]) -> None:
        while service.tls.reloads < 10:
            assert await client.ask(b"%d" % len(answered)) == b"%d" % len(answered)
            answered.append(1)

    async def scenario() -> None:
        reloading = Reloading(tmp_path)
        reloading.reloader.start()
        async with serving_tls(Desk(echo), reloading.tls) as service:
            first = await service.connect_tls()
            answered: list[int] = []
            asking = asyncio.ensure_future(ask(service, first, answered))
            for number in range(10):
                renewed = certify(name("broker"), AUTHORITY)
                reloading.write(renewed)
                await until(lambda number=number: service.tls.reloads == number + 1)  # type: ignore[misc]
                client = await service.connect_tls()
                assert serial(client) == certificate_of(renewed)
                assert await client.ask(b"new") == b"new"
            await asking
            assert answered
            assert serial(first) == certificate_of(BROKER)
            assert service.server.stats.closed == {}
        await reloading.reloader.close()

    def certificate_of(certified: Certified) -> bytes:
        return ssl.PEM_cert_to_DER_cert(certified.chain_pem)

    run(scenario())


def test_a_listener_that_is_not_valid_at_startup_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=r'listener "SSL": cannot read ssl\.keystore\.location'):
        loaded(keystore_location=str(tmp_path / "none"))
    assert isinstance(loaded(), ListenerTls)
