"""Replaces credentials while the workloads run, and compares latencies with those of the time between replacements.

Each replacement returns when it has taken effect on all brokers and, where clients take part, in all workloads. No
workload may report an error, and none may lose or repeat a record; `world` checks the latter.
"""

from __future__ import annotations

import asyncio
import math
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median

from confluent_kafka.admin import AdminClient, ResourceType
from penstock_crash.journal import Journal

from penstock.client import ClientError, Sasl, Tls
from penstock.client.connection import ClientConnection
from penstock_chaos.broker import ClusterBroker
from penstock_chaos.console import Truth
from penstock_chaos.history import SOURCE
from penstock_chaos.loads.login import digest
from penstock_chaos.secured import (
    BROKERS,
    PREFIXED,
    SCRAM_USERS,
    SESSION_MS,
    TOKEN_USERS,
    VISITOR,
    Administrator,
    Certified,
    Secured,
    certify,
)
from penstock_chaos.world import World

ROUNDS = 5
QUIET_S = 6.0
EFFECT_LIMIT_S = 60.0
LOGIN_S = 5.0
MAX_RATIO = 2.0
DOWN = 3
QUIET, PASSWORDS = "no replacement", "passwords"
REFUSED = re.compile("_AUTHENTICATION|AuthenticationFailed")
SECURITY = re.compile("(?i)authentic|authoriz|ssl|certificate")


class Rotation:
    """The replacements of one cell."""

    def __init__(self, world: World) -> None:
        assert world.secured is not None, "the cell has a secured cluster"
        self.world, self.secured = world, world.secured
        self.administrator = Administrator(world.cluster.bootstrap, self.secured)
        self.windows: dict[str, list[tuple[float, float]]] = {}
        """By kind of replacement, or `QUIET`: when each began and ended."""

    def do(self, kind: str, replace: Callable[[], None]) -> None:
        """Replace one kind of credential, and measure."""
        begin_s = time.monotonic()
        replace()
        self.windows.setdefault(kind, []).append((begin_s, time.monotonic()))

    def quiet(self) -> None:
        """Measure without a replacement."""
        self.do(QUIET, lambda: time.sleep(QUIET_S))

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait for an effect. Raises AssertionError."""
        holds = self.world.comes_true(condition, EFFECT_LIMIT_S)
        assert holds, f"waited {EFFECT_LIMIT_S:.0f} s until {what}"

    def check_errors(self) -> None:
        """It is a finding if a client reported an error, unless it still had a password that was just replaced."""
        self.world.read()
        excused = 0
        for name, workload in self.world.workloads.items():
            for at_s, text in errors_of(workload.journal):
                replaced = [begin_s for begin_s, end_s in self.windows.get(PASSWORDS, ()) if begin_s <= at_s <= end_s]
                if replaced and name in SCRAM_USERS and REFUSED.search(text):
                    excused += 1
                else:
                    self.world.broken(f"{name} reports {text}")
        if self.windows.get(PASSWORDS):
            self.world.prove(f"{excused} logins with a password that had just been replaced were refused and repeated")

    # Certificates

    def running(self) -> list[ClusterBroker]:
        """Return the brokers that run."""
        return [broker for broker in self.world.cluster.brokers.values() if broker.is_running]

    def certificate(self) -> None:
        """Replace the brokers' certificate by another of the same CA."""
        self.secured.certificate = certify(BROKERS, self.secured.authority)
        self.secured.publish_tls()
        self.wait_presented()

    def wait_presented(self) -> None:
        """Wait until all running brokers present the new certificate on both listeners."""
        expected = self.secured.certificate.chain_pem

        def holds() -> bool:
            ports = [port for broker in self.running() for port in (broker.port, broker.internal_port)]
            return all(presented(port) == expected for port in ports)

        self.wait("all brokers present the new certificate", holds)

    def wait_trusted(self, authority: Certified, is_trusted: bool = True) -> None:
        """Wait until all running brokers accept the certificates of a CA from other brokers, or refuse them."""
        probe = certify(BROKERS, authority)

        def holds() -> bool:
            return all(accepts(b.internal_port, self.secured, probe) is is_trusted for b in self.running())

        self.wait(f"all brokers {'accept' if is_trusted else 'refuse'} certificates of the CA", holds)

    def authority(self) -> None:
        """Replace the CA: trust old and new, replace the certificates, trust the new one only."""
        self.replace_authority(self.publish_authority())

    def publish_authority(self) -> Certified:
        """Let brokers and clients trust a new CA beside the old one, which is returned."""
        old, new = self.secured.authority, self.secured.new_authority()
        self.secured.trusted = [old, new]
        self.secured.publish_tls()
        self.secured.publish_trust()
        self.wait_trusted(new)
        self.wait_logins()
        self.secured.authority = new
        return old

    def replace_authority(self, old: Certified) -> None:
        """Use certificates of the new CA, and trust no other."""
        self.certificate()
        self.secured.trusted = [self.secured.authority]
        self.secured.publish_tls()
        self.secured.publish_trust()
        self.wait_trusted(old, is_trusted=False)
        self.wait_logins()

    # Clients

    def wait_logins(self) -> None:
        """Wait until every client of a workload uses the present CA certificates and password."""

        def holds() -> bool:
            self.world.read()
            return all(self.has_present_logins(name) for name in self.world.workloads)

        self.wait("all clients use the present credentials", holds)

    def has_present_logins(self, name: str) -> bool:
        """Whether the clients of a workload use the present credentials. kafka-python with tokens reads them itself."""
        if name == "kafka-python":
            return True
        last = {client: digests for client, *digests, _ in self.world.workloads[name].journal.of("login")}
        password = self.secured.password(name) if name in SCRAM_USERS else ""
        return all(found == [digest(self.secured.trust_pem), digest(password)] for found in last.values())

    def passwords(self) -> None:
        """Replace the password of each user; a client with an old one is refused."""
        for user in SCRAM_USERS:
            old = self.secured.password(user)
            self.administrator.set_password(user)
            assert not self.can_log_in(user, old), f"the old password of {user} is accepted"
            assert self.can_log_in(user, self.secured.password(user)), f"the new password of {user} is refused"
        self.wait_logins()

    def can_log_in(self, user: str, password: str) -> bool:
        """Whether the cluster accepts a password."""
        sasl = Sasl("SCRAM-SHA-512", user, password)
        return connects(self.running()[0].port, Tls(ca_data=self.secured.trust_pem), sasl)

    def client(self, user: str, password: str) -> AdminClient:
        return AdminClient(
            {"bootstrap.servers": self.world.cluster.bootstrap} | self.secured.librdkafka(user, password)
        )

    def rights(self) -> None:
        """Replace the ACLs of each user by others that allow the same, and take those of the visitor."""
        for user in (*SCRAM_USERS, *TOKEN_USERS):
            self.administrator.allow(user, ResourceType.TOPIC, SOURCE[:3], PREFIXED)
            assert self.administrator.revoke(user, ResourceType.TOPIC, SOURCE) == 1
            self.administrator.allow(user, ResourceType.TOPIC, SOURCE)
            assert self.administrator.revoke(user, ResourceType.TOPIC, SOURCE[:3], PREFIXED) == 1
        visitor = self.client(VISITOR, self.secured.password(VISITOR))
        assert SOURCE in visitor.list_topics(timeout=LOGIN_S).topics
        assert self.administrator.revoke(VISITOR, ResourceType.TOPIC, SOURCE) == 1
        self.wait(
            "the visitor does not see the topic", lambda: SOURCE not in visitor.list_topics(timeout=LOGIN_S).topics
        )
        self.administrator.allow(VISITOR, ResourceType.TOPIC, SOURCE)

    def token_keys(self) -> None:
        """Replace the key that signs tokens: publish the new one, sign with it, and withdraw the old one."""
        old, new = self.secured.token_key, self.secured.new_token_key()
        self.secured.publish_keys(old, new)
        self.secured.use_token_key(new)
        self.secured.token_key = new
        time.sleep(2 * SESSION_MS / 1000)  # every client has authenticated again
        self.secured.publish_keys(new)
        time.sleep(SESSION_MS / 1000)


def presented(port: int) -> str:
    """Return the certificate that a listener presents, as PEM; empty if it does not respond."""
    try:
        return ssl.get_server_certificate(("127.0.0.1", port), timeout=LOGIN_S)
    except OSError:
        return ""


def accepts(port: int, secured: Secured, certified: Certified) -> bool:
    """Whether a broker accepts a certificate from another broker."""
    tls = Tls(ca_data=secured.trust_pem, certificate_data=certified.chain_pem, key_data=certified.key_pem)
    return connects(port, tls)


def connects(port: int, tls: Tls, sasl: Sasl | None = None) -> bool:
    """Whether a broker accepts a new connection."""

    async def connect() -> None:
        await (await ClientConnection.open("127.0.0.1", port, tls=tls.context(), sasl=sasl)).close()

    try:
        asyncio.run(connect())
    except ClientError:
        return False
    return True


# Judgement


def errors_of(journal: Journal) -> Iterator[tuple[float, str]]:
    """Return times and texts of the errors that a workload's clients reported."""
    for _, text, at_s in journal.of("error"):
        yield at_s, text
    for text, at_s in journal.of("note"):
        if SECURITY.search(text):
            yield at_s, text


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the values do not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def latencies_in(world: World, window: tuple[float, float]) -> list[float]:
    """Return the sorted times from sending to acknowledgement, in ms, of the records sent in a window."""
    return sorted(
        (acknowledged_s - sent_s) * 1000
        for offsets in world.acknowledged.values()
        for sent_s, acknowledged_s in offsets.values()
        if window[0] <= sent_s < window[1]
    )


def judge(world: World, windows: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    """Print the latencies of each kind; it is a finding if p99 is more than `MAX_RATIO` times that of `QUIET`.

    A percentile is the median of those of the windows, since other processes delay single windows.
    """
    world.read()
    quiet = 0.0
    for kind in sorted(windows, key=lambda each: each != QUIET):
        found = [latencies_in(world, window) for window in windows[kind]]
        p50, p99 = (median(percentile(each, share) for each in found) for share in (0.5, 0.99))
        quiet = quiet or p99
        world.prove(
            f"{kind}, {len(found)} times: latency p50 {p50:.0f} ms, p99 {p99:.0f} ms ({p99 / quiet:.2f}x), maximum"
            f" {max(each[-1] for each in found):.0f} ms of {sum(map(len, found)):,} records"
        )
        if p99 > MAX_RATIO * quiet:
            world.broken(f"{kind} delays records: p99 is {p99:.0f} ms instead of {quiet:.0f} ms")


# Cells


def rotation(world: World) -> None:
    """Replace everything in turn, several times, and judge the latencies."""
    turn = Rotation(world)
    for _ in range(ROUNDS):
        for kind, replace in (
            ("server certificate", turn.certificate),
            ("CA", turn.authority),
            (PASSWORDS, turn.passwords),
            ("ACLs", turn.rights),
            ("token keys", turn.token_keys),
        ):
            turn.quiet()
            turn.do(kind, replace)
    turn.check_errors()
    judge(world, turn.windows)
    restart_each(world)


def restart_each(world: World) -> None:
    """Restart the brokers, which proves that they connect to each other with what they have now."""
    for broker in world.cluster.brokers.values():
        broker.stop()
        broker.start()
        world.cluster.wait_truth("all replicas in sync", lambda truth: is_complete(world, truth))
    world.prove("each broker restarted, and its replicas are in sync")


def is_complete(world: World, truth: Truth) -> bool:
    """Whether all brokers are registered and all replicas in sync."""
    return truth.is_whole and truth.brokers.keys() == world.cluster.brokers.keys()


def once(world: World) -> None:
    """Replace a certificate and the passwords."""
    turn = Rotation(world)
    turn.certificate()
    world.prove("all brokers present another certificate")
    turn.do(PASSWORDS, turn.passwords)
    turn.check_errors()
    world.prove("all clients use another password; the old ones are refused")


def while_down(world: World) -> None:
    """Replace the CA while a broker is down: it returns with the certificates and the CA of now."""
    turn = Rotation(world)
    broker = world.cluster.brokers[DOWN]
    old = turn.publish_authority()
    broker.kill()
    world.prove(f"broker {DOWN} was killed (SIGKILL) after all brokers had trusted the new CA")
    turn.replace_authority(old)
    world.prove("the other brokers trust the new CA only")
    broker.start()
    turn.wait_presented()
    world.cluster.wait_truth(f"broker {DOWN} to be in sync", lambda truth: is_complete(world, truth))
    world.prove(f"broker {DOWN} is in sync again")
    restart_each(world)
