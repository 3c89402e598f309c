"""The store on an etcd with authentication: users with tokens, certificates on both sides."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aetcd.rpc import auth_pb2, rpc_pb2
from etcd_kit import DEADLINE_S, Proxy, eventually
from etcd_process import EtcdCluster

from penstock.state.etcd.options import EtcdOptions, InvalidEtcdOption
from penstock.state.etcd.store import EtcdStore
from penstock.state.store import PutOp, StoreError, StoreUnavailable

pytestmark = pytest.mark.integration

ROOT = {"user": "root", "password": "r00t"}
BROKER = {"user": "penstock", "password": "s3cret"}


@asynccontextmanager
async def opened(*endpoints: str, **options: Any) -> AsyncIterator[EtcdStore]:
    store = EtcdStore(EtcdOptions(endpoints=endpoints, **options))
    try:
        yield store
    finally:
        await store.close()


async def drop_tokens(etcd: EtcdCluster) -> None:
    """Make etcd forget the broker's tokens, as when they expire: it does so when a password is set."""
    request = rpc_pb2.AuthUserChangePasswordRequest(name=BROKER["user"], password=BROKER["password"])
    async with opened(*etcd.endpoints, **ROOT) as store:
        await store.caller.call(lambda e: e.auth.UserChangePassword, request, repeatable=False)


async def guard(etcd: EtcdCluster) -> None:
    """Create a user for brokers with access only to /penstock/, and enable authentication."""
    permission = auth_pb2.Permission(permType=auth_pb2.Permission.READWRITE, key=b"/penstock/", range_end=b"/penstock0")
    requests = [
        ("UserAdd", rpc_pb2.AuthUserAddRequest(name=ROOT["user"], password=ROOT["password"])),
        ("RoleAdd", rpc_pb2.AuthRoleAddRequest(name="root")),
        ("UserGrantRole", rpc_pb2.AuthUserGrantRoleRequest(user="root", role="root")),
        ("UserAdd", rpc_pb2.AuthUserAddRequest(name=BROKER["user"], password=BROKER["password"])),
        ("RoleAdd", rpc_pb2.AuthRoleAddRequest(name="broker")),
        ("RoleGrantPermission", rpc_pb2.AuthRoleGrantPermissionRequest(name="broker", perm=permission)),
        ("UserGrantRole", rpc_pb2.AuthUserGrantRoleRequest(user=BROKER["user"], role="broker")),
        ("AuthEnable", rpc_pb2.AuthEnableRequest()),
    ]
    async with opened(*etcd.endpoints) as store:
        for name, request in requests:
            await store.caller.call(lambda e, name=name: getattr(e.auth, name), request, repeatable=False)  # type: ignore[misc]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path_factory.mktemp("guarded"), arguments=["--bcrypt-cost=4"]) as running:
        asyncio.run(guard(running))
        yield running


async def test_a_user_reads_writes_watches_and_holds_leases(guarded: EtcdCluster) -> None:
    async with opened(*guarded.endpoints, **BROKER) as store:
        lease = await store.grant_lease(60)
        revision = (await store.txn([], [PutOp("/penstock/k", b"v", lease)])).revision
        assert [e.key for e in (await store.range("/penstock/")).entries] == ["/penstock/k"]
        changes = await anext(aiter(store.watch("/penstock/", revision)))
        assert changes.revision == revision
        await store.keep_alive(lease)
        await store.revoke_lease(lease)
        assert await store.get("/penstock/k") is None
        assert store.auth.renewals == 1


async def test_an_expired_token_is_renewed_once_for_all_calls_that_meet_it(guarded: EtcdCluster) -> None:
    async with opened(*guarded.endpoints, **BROKER) as store:
        await asyncio.gather(*[store.get("/penstock/a") for _ in range(20)])
        assert store.auth.renewals == 1
        await drop_tokens(guarded)
        results = await asyncio.gather(*[store.txn([], [PutOp(f"/penstock/{i}", b"")]) for i in range(20)])
        assert all(result.succeeded for result in results)
        assert store.auth.renewals == 2


async def test_a_watch_outlives_its_token_also_when_its_connection_is_cut(guarded: EtcdCluster) -> None:
    async with (
        Proxy(guarded.members[0].client_port) as proxy,
        opened(proxy.url, **BROKER) as store,
        opened(*guarded.endpoints, **BROKER) as writer,
    ):
        start = (await writer.txn([], [PutOp("/penstock/w", b"1")])).revision
        watching = aiter(store.watch("/penstock/w", start))
        assert (await anext(watching)).revision == start
        arriving = asyncio.ensure_future(anext(watching))  # type: ignore[arg-type]
        await drop_tokens(guarded)
        proxy.cut()
        await eventually(lambda: store.auth.renewals == 2)
        last = (await writer.txn([], [PutOp("/penstock/w", b"2")])).revision
        async with asyncio.timeout(DEADLINE_S):
            assert (await arriving).revision == last
        await watching.aclose()  # type: ignore[attr-defined]


async def test_who_gives_no_user_or_a_wrong_password_is_told(guarded: EtcdCluster) -> None:
    async with opened(*guarded.endpoints) as store:
        with pytest.raises(StoreError, match="set user and password"):
            await store.get("/penstock/k")
    async with opened(*guarded.endpoints, user="penstock", password="wrong") as store:
        with pytest.raises(StoreError, match="check user and password"):
            await store.get("/penstock/k")
        with pytest.raises(StoreError, match="check user and password"):
            await anext(aiter(store.watch("/penstock/", 1)))


async def test_what_the_user_may_not_do_is_an_error_that_says_what_to_grant(guarded: EtcdCluster) -> None:
    async with opened(*guarded.endpoints, **BROKER) as store:
        for call in (
            store.get("/elsewhere"),
            store.txn([], [PutOp("/elsewhere", b"")]),
            anext(aiter(store.watch("/elsewhere", 1))),
        ):
            async with asyncio.timeout(DEADLINE_S):
                with pytest.raises(StoreError, match="grant the user a role"):
                    await call


async def test_a_user_is_not_needed_and_does_no_harm_where_etcd_asks_for_none(etcd: EtcdCluster) -> None:
    async with opened(*etcd.endpoints, **BROKER) as store:
        assert (await store.txn([], [PutOp("/k", b"")])).succeeded


def openssl(folder: Path, *arguments: str) -> None:
    made = subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr


def make_certificates(folder: Path, authority: str, *names: str) -> None:
    """Create `<authority>.pem`, and for each name a certificate for 127.0.0.1 signed by it."""
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    openssl(
        folder,
        "req",
        "-x509",
        *key,
        "-subj",
        f"/CN={authority}",
        "-keyout",
        f"{authority}.key",
        "-out",
        f"{authority}.pem",
    )
    (folder / "names.cnf").write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
    for name in names:
        openssl(folder, "req", *key[:-2], "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        signing = ["-CA", f"{authority}.pem", "-CAkey", f"{authority}.key", "-CAcreateserial", "-days", "2"]
        openssl(folder, "x509", "-req", "-in", f"{name}.csr", *signing, "-extfile", "names.cnf", "-out", f"{name}.pem")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder, "ca", "server", "client")
    make_certificates(folder, "other", "stranger")
    return folder


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory, certificates: Path) -> Iterator[EtcdCluster]:
    arguments = [
        f"--cert-file={certificates / 'server.pem'}",
        f"--key-file={certificates / 'server.key'}",
        f"--trusted-ca-file={certificates / 'ca.pem'}",
        "--client-cert-auth",
    ]
    with EtcdCluster(tmp_path_factory.mktemp("encrypted"), arguments=arguments) as running:
        yield running


def tls(folder: Path, authority: str | None = "ca", client: str | None = "client") -> dict[str, str]:
    found = {"ca_file": str(folder / f"{authority}.pem")} if authority else {}
    if client:
        found |= {"cert_file": str(folder / f"{client}.pem"), "key_file": str(folder / f"{client}.key")}
    return found


async def test_both_sides_show_certificates(encrypted: EtcdCluster, certificates: Path) -> None:
    async with opened(*encrypted.endpoints, **tls(certificates)) as store:
        revision = (await store.txn([], [PutOp("/k", b"v")])).revision
        assert (await anext(aiter(store.watch("/k", revision)))).revision == revision
        lease = await store.grant_lease(60)
        await store.keep_alive(lease)


async def test_a_server_that_a_stranger_has_certified_is_refused(encrypted: EtcdCluster, certificates: Path) -> None:
    async with opened(*encrypted.endpoints, **tls(certificates, authority="other")) as store:
        with pytest.raises(StoreUnavailable, match=r"(?i)certificate"):
            await store.get("/k")


@pytest.mark.parametrize("client", [None, "stranger"])
async def test_etcd_refuses_a_client_without_a_certificate_of_its_authority(
    encrypted: EtcdCluster, certificates: Path, client: str | None
) -> None:
    async with opened(*encrypted.endpoints, **tls(certificates, client=client)) as store:
        with pytest.raises(StoreUnavailable, match=encrypted.endpoints[0]):
            await store.get("/k")


async def test_an_endpoint_without_tls_does_not_reach_an_etcd_with(encrypted: EtcdCluster) -> None:
    plain = encrypted.endpoints[0].replace("https", "http")
    async with opened(plain) as store:
        with pytest.raises(StoreUnavailable, match=plain):
            await store.get("/k")


async def test_a_certificate_file_that_is_not_there_is_named(certificates: Path) -> None:
    files = tls(certificates) | {"ca_file": str(certificates / "missing.pem")}
    async with opened("https://127.0.0.1:1", **files) as store:
        with pytest.raises(InvalidEtcdOption, match=r"ca_file.*missing\.pem"):
            await store.get("/k")
