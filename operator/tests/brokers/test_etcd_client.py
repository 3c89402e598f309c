"""The JSON API of etcd: a real etcd with TLS, and programs that are none."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime

import pytest
from aiohttp import web

from penstock.state.etcd.binary import find_etcd
from penstock_operator.brokers import etcd_client
from penstock_operator.brokers.etcd_client import EtcdClient
from penstock_operator.pki.authority import CertificateRequest, create_authority, issue
from penstock_operator.ports.brokers import ClientCertificate
from penstock_operator.ports.state_store import StateStoreError

pytestmark = pytest.mark.integration
PATIENCE_S = 60


def reserved_port() -> socket.socket:
    """Reserve a free port: only a process that requests it, with SO_REUSEADDR, can listen on it."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind(("127.0.0.1", 0))
    return one


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ClientCertificate]]:
    """Start an etcd that requires client certificates; return its endpoint and a certificate."""
    folder, now = tmp_path_factory.mktemp("etcd"), datetime.now(UTC)
    authority = create_authority("etcd", "test", now, 2)
    pair = issue(authority, CertificateRequest("c-etcd", "test", 1, ("localhost", "127.0.0.1")), now)
    files = {"ca.crt": authority.certificate, "tls.crt": pair.certificate, "tls.key": pair.key}
    for name, text in files.items():
        (folder / name).write_text(text)
    clients, peers = reserved_port(), reserved_port()
    url, peer = (f"https://127.0.0.1:{one.getsockname()[1]}" for one in (clients, peers))
    tls = [f"--{kind}{flag}={folder / name}" for kind in ("", "peer-") for flag, name in (
        ("trusted-ca-file", "ca.crt"), ("cert-file", "tls.crt"), ("key-file", "tls.key"))]  # fmt: skip
    command = [
        find_etcd().path, "--name=one", f"--data-dir={folder / 'data'}", f"--listen-client-urls={url}",
        f"--advertise-client-urls={url}", f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=one={peer}", "--client-cert-auth=true", "--peer-client-cert-auth=true", *tls,
    ]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    yield url, ClientCertificate(authority.certificate, pair.certificate, pair.key)
    process.kill()
    process.wait()
    clients.close()
    peers.close()


async def until_answered(url: str, access: ClientCertificate) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while (await EtcdClient().observe([url], access)).members is None:
        assert time.monotonic() < deadline, "etcd does not start"
        await asyncio.sleep(0.1)


async def test_a_real_etcd_with_tls_is_observed_by_who_has_a_certificate(
    secured: tuple[str, ClientCertificate],
) -> None:
    url, access = secured
    await until_answered(url, access)
    found = await EtcdClient().observe([url, "https://127.0.0.1:1"], access)
    assert found.members is not None
    assert [member.name for member in found.members] == ["one"]
    status = found.statuses[url]
    assert (status.is_healthy, status.member_id) == (True, found.members[0].member_id)
    assert status.database_bytes > 0
    assert list(found.problems) == ["https://127.0.0.1:1"]
    assert found.alarms == frozenset()
    nameless = await EtcdClient().observe([url], ClientCertificate(access.ca, "", ""))
    assert (nameless.statuses, nameless.members) == ({}, None)
    stranger = create_authority("other", "test", datetime.now(UTC), 2)
    distrusted = await EtcdClient().observe([url], ClientCertificate(stranger.certificate, "", ""))
    assert "certificate" in distrusted.problems[url]


async def test_the_removal_of_a_member_that_is_gone_is_no_error_and_a_bad_request_is_one(
    secured: tuple[str, ClientCertificate],
) -> None:
    url, access = secured
    await until_answered(url, access)
    await EtcdClient().remove_member(url, access, 12345)
    with pytest.raises(StateStoreError, match="given member URLs are invalid") as found:
        await EtcdClient().add_member(url, access, "not a url")
    assert not found.value.is_passing


async def test_certificates_that_cannot_be_used_are_an_error_that_a_retry_does_not_fix() -> None:
    with pytest.raises(StateStoreError, match="certificates for etcd") as found:
        await EtcdClient().observe(["https://127.0.0.1:1"], ClientCertificate("no PEM", "", ""))
    assert not found.value.is_passing


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def served(handler: Handler) -> tuple[str, web.AppRunner]:
    app = web.Application()
    app.router.add_post("/{path:.*}", handler)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return f"http://127.0.0.1:{runner.addresses[0][1]}", runner


GOOD = '{"header":{"member_id":"7"},"leader":"7","dbSize":"1"}'


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (200, "<html>", "not one of etcd's JSON API"),
        (200, "[]", "not one of etcd's JSON API"),
        (200, "{}", "numbers are out of range"),
        (200, '{"header":{"member_id":"-1"}}', "numbers are out of range"),
        (200, '{"header":{"member_id":"7"},"leader":"36893488147419103232"}', "out of range|JSON API"),
        (200, '{"header":{"member_id":"x"}}', "not one of etcd's JSON API"),
        (200, " " * (etcd_client.MAX_RESPONSE_BYTES + 1), "has more than"),
        (404, "page not found", "HTTP status 404"),
        (302, "", "HTTP status 302"),
        (503, '{"code":14,"message":"etcdserver: no leader\\u001b[31m"}', "etcdserver: no leader"),
    ],
)
async def test_a_program_that_is_no_etcd_is_a_member_that_does_not_answer(status: int, body: str, words: str) -> None:
    async def respond(request: web.Request) -> web.Response:
        return web.Response(status=status, text=body, headers={"Location": "/elsewhere"} if status == 302 else {})

    url, runner = await served(respond)
    try:
        found = await EtcdClient().observe([url], None)
    finally:
        await runner.cleanup()
    assert found.statuses == {}
    assert re.search(words, found.problems[url])
    assert "\x1b" not in found.problems[url]


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ("{}", "expected 1 to 64 members, got 0"),
        ('{"members":[' + ",".join(['{"ID":"1"}'] * 65) + "]}", "expected 1 to 64 members, got 65"),
        ('{"members":[{"ID":"0"}]}', "member 0 is out of range"),
        ('{"members":[{"ID":"1","peerURLs":[1]}]}', "JSON API"),
    ],
)
async def test_a_member_list_that_cannot_be_is_no_quorum(members: str, words: str) -> None:
    async def respond(request: web.Request) -> web.Response:
        return web.Response(text=GOOD if request.path.endswith("status") else members)

    url, runner = await served(respond)
    try:
        found = await EtcdClient().observe([url], None)
    finally:
        await runner.cleanup()
    assert found.members is None
    assert words in found.members_error
