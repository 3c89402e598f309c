"""Requests to etcd by its JSON API: implements `ports.state_store.StateStoreClient`. Created by `main`.

The operator has no gRPC: etcd serves the same requests as JSON at the address of its clients.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from penstock_operator.brokers import etcd_answers
from penstock_operator.brokers.certificate_files import CertificateFiles
from penstock_operator.ports.brokers import ClientCertificate
from penstock_operator.ports.state_store import StateStoreClient, StateStoreError, StateStoreReport, StateStoreStatus

STATUS_TIMEOUT_S = 3.0
REQUEST_TIMEOUT_S = 5.0
"""Timeout of requests that need a quorum: longer than an election; the status of the brokers waits for them."""
MAX_RESPONSE_BYTES = 1 << 20
MAX_CONCURRENT_REQUESTS = 16
NOT_LEARNER = "can only promote a learner member"
NOT_IN_SYNC = f"{NOT_LEARNER} which is in sync with leader"
"""Errors of etcd."""
ATTEMPTS = 2
"""Members that are asked for the member list, one after the other."""


class EtcdClient(StateStoreClient):
    """Opens connections for each observation: there is one in some seconds at most."""

    async def observe(self, endpoints: Sequence[str], access: ClientCertificate | None) -> StateStoreReport:
        """Return the state of all members. Raises `StateStoreError` if `access` is not usable."""
        async with session(access) as connected:
            answers = await asyncio.gather(*(_status(connected, endpoint) for endpoint in endpoints))
            found = dict(zip(endpoints, answers, strict=True))
            statuses = {url: answer for url, answer in found.items() if isinstance(answer, StateStoreStatus)}
            problems = {url: answer for url, answer in found.items() if isinstance(answer, str)}
            members, error = None, "no member answers"
            alarms = frozenset[str]()
            # A member with a leader first: another one cannot reach a quorum.
            for url in sorted(statuses, key=lambda url: not statuses[url].leader_id)[:ATTEMPTS]:
                try:
                    body = await request(connected, url, "cluster/member/list", {"linearizable": True})
                    members = etcd_answers.members(body)
                    alarms = etcd_answers.alarms(await request(connected, url, "maintenance/alarm", {"action": "GET"}))
                    break
                except StateStoreError as e:
                    members, error = None, str(e)
        return StateStoreReport(statuses, problems, members, "" if members is not None else error, alarms)

    async def remove_member(self, endpoint: str, access: ClientCertificate | None, member_id: int) -> None:
        """Remove a member; one that does not exist is no error. Raises `StateStoreError`."""
        await self._change(endpoint, access, "cluster/member/remove", {"ID": str(member_id)}, "member not found")

    async def add_member(self, endpoint: str, access: ClientCertificate | None, peer_url: str) -> None:
        """Add a learner; one that exists is no error. Raises `StateStoreError`."""
        body = {"peerURLs": [peer_url], "isLearner": True}
        await self._change(endpoint, access, "cluster/member/add", body, "Peer URLs already exists")

    async def promote_member(self, endpoint: str, access: ClientCertificate | None, member_id: int) -> None:
        """Let a learner vote; one that votes is no error. Raises `StateStoreError`, which is passing while the learner
        is not in sync with the leader."""
        try:
            await self._change(endpoint, access, "cluster/member/promote", {"ID": str(member_id)}, NOT_LEARNER)
        except StateStoreError as e:
            raise StateStoreError(str(e), is_passing=e.is_passing or NOT_IN_SYNC in str(e)) from None

    async def move_leader(self, endpoint: str, access: ClientCertificate | None, member_id: int) -> None:
        """Let the leader hand over to another member. Raises `StateStoreError`."""
        async with session(access) as connected:
            await request(connected, endpoint, "maintenance/transfer-leadership", {"targetID": str(member_id)})

    async def _change(
        self, endpoint: str, access: ClientCertificate | None, path: str, body: dict[str, Any], done: str
    ) -> None:
        async with session(access) as connected:
            try:
                await request(connected, endpoint, path, body)
            except StateStoreError as e:
                if not str(e).endswith(done):
                    raise


@asynccontextmanager
async def session(access: ClientCertificate | None) -> AsyncIterator[aiohttp.ClientSession]:
    """Yield a session with the certificate. Raises `StateStoreError` if it is not usable."""
    connector = aiohttp.TCPConnector(
        ssl=True if access is None else tls_context(access), limit=MAX_CONCURRENT_REQUESTS, force_close=True
    )
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as connected:
        yield connected


def tls_context(access: ClientCertificate) -> ssl.SSLContext:
    """Return a context that trusts the CA only. Raises `StateStoreError`."""
    files = CertificateFiles(access) if access.certificate and access.key else None
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_verify_locations(cadata=access.ca)
        if files is not None:
            context.load_cert_chain(files.certificate_file, files.key_file)
    except (ssl.SSLError, ValueError) as e:
        raise StateStoreError(f"the certificates for etcd cannot be used: {e}", is_passing=False) from None
    finally:
        if files is not None:
            files.remove()
    return context


async def request(connected: aiohttp.ClientSession, endpoint: str, path: str, body: dict[str, Any]) -> bytes:
    """Return the response of one member. Raises `StateStoreError`."""
    timeout = aiohttp.ClientTimeout(total=STATUS_TIMEOUT_S if path.endswith("status") else REQUEST_TIMEOUT_S)
    url = f"{endpoint.rstrip('/')}/v3/{path}"
    try:
        async with connected.post(url, json=body, timeout=timeout, allow_redirects=False) as response:
            found = bytearray()
            async for chunk in response.content.iter_chunked(65_536):
                found += chunk
                if len(found) > MAX_RESPONSE_BYTES:
                    raise StateStoreError(f"{endpoint}: the response has more than {MAX_RESPONSE_BYTES:,} bytes")
    except TimeoutError:
        raise StateStoreError(f"{endpoint}: no response in {timeout.total:.0f} s") from None
    except (aiohttp.ClientError, OSError, ValueError) as e:
        raise StateStoreError(f"{endpoint}: {etcd_answers.shortened(str(e) or type(e).__name__)}") from None
    if response.status != 200:
        why = etcd_answers.failure(bytes(found)) or f"HTTP status {response.status}"
        raise StateStoreError(f"{endpoint}: {why}", is_passing=response.status >= 500)
    return bytes(found)


async def _status(connected: aiohttp.ClientSession, endpoint: str) -> StateStoreStatus | str:
    """Return the status of a member, or the error."""
    try:
        return etcd_answers.status(await request(connected, endpoint, "maintenance/status", {}))
    except StateStoreError as e:
        return str(e)
