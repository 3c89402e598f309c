"""Replaces credentials while the workloads run, and compares latencies with those of the time between replacements.

Each replacement returns when it has taken effect on all brokers and, where clients take part, in all workloads. No
workload may report an error, and none may lose or repeat a record; `world` checks the latter.

Other processes on the machine delay records as well. Therefore each replacement is compared with the time right before
and after it only, and verified outside of the time that is measured.
"""

from __future__ import annotations

import asyncio
import math
import re
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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

ROUNDS = 4
QUIET_S = 3.0
EFFECT_LIMIT_S = 60.0
PROBE_S = 0.5
LOGIN_S = 5.0
MAX_RATIO = 2.0
DOWN = 3
PASSWORDS = "passwords"
REFUSED = re.compile("_AUTHENTICATION|AuthenticationFailed")
SECURITY = re.compile("(?i)authentic|authoriz|ssl|certificate")


Span = tuple[float, float]
"""Begin and end of a time, in seconds of the monotonic clock."""


@dataclass
class Measured:
    """One replacement of a kind of credential, and the times without one right before and after it."""

    kind: str
    replacing: Span
    quiet: list[Span]


class Rotation:
    """The replacements of one cell."""

    def __init__(self, world: World) -> None:
        assert world.secured is not None, "the cell has a secured cluster"
        self.world, self.secured = world, world.secured
        self.administrator = Administrator(world.cluster.bootstrap, self.secured)
        self.replaced: list[Measured] = []
        self.old_passwords: dict[str, str] = {}
        """By user: the password before the last replacement."""

    def do(self, kind: str, replace: Callable[[], None]) -> None:
        """Replace one kind of credential, and record when."""
        begin_s = time.monotonic()
        replace()
        self.replaced.append(Measured(kind, (begin_s, time.monotonic()), []))

    def measure(self, kind: str, replace: Callable[[], None], verify: Callable[[], None] | None = None) -> None:
        """Replace one kind of credential between two times without a replacement, then verify that it took effect."""
        before = quiet()
        self.do(kind, replace)
        self.replaced[-1].quiet = [before, quiet()]
        if verify is not None:
            verify()

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait for an effect. Raises AssertionError."""
        holds = self.world.comes_true(condition, EFFECT_LIMIT_S, PROBE_S)
        assert holds, f"waited {EFFECT_LIMIT_S:.0f} s until {what}"

    def check_errors(self) -> None:
        """It is a finding if a client reported an error, unless it still had a password that was just replaced."""
        self.world.read()
        excused = 0
        passwords = [each.replacing for each in self.replaced if each.kind == PASSWORDS]
        for name, workload in self.world.workloads.items():
            for at_s, text in errors_of(workload.journal):
                is_replaced = any(begin_s <= at_s <= end_s for begin_s, end_s in passwords)
                if is_replaced and name in SCRAM_USERS and REFUSED.search(text):
                    excused += 1
                else:
                    self.world.broken(f"{name} reports {text}")
        if passwords:
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
        """Replace the password of each user."""
        self.old_passwords = {user: self.secured.password(user) for user in SCRAM_USERS}
        for user in SCRAM_USERS:
            self.administrator.set_password(user)
        self.wait_logins()

    def verify_passwords(self) -> None:
        """Verify that a client with an old password is refused."""
        for user, old in self.old_passwords.items():
            assert not self.can_log_in(user, old), f"the old password of {user} is accepted"
            assert self.can_log_in(user, self.secured.password(user)), f"the new password of {user} is refused"

    def can_log_in(self, user: str, password: str) -> bool:
        """Whether the cluster accepts a password."""
        sasl = Sasl("SCRAM-SHA-512", user, password)
        return connects(self.running()[0].port, Tls(ca_data=self.secured.trust_pem), sasl)

    def client(self, user: str, password: str) -> AdminClient:
        return AdminClient(
            {"bootstrap.servers": self.world.cluster.bootstrap} | self.secured.librdkafka(user, password)
        )

    def rights(self) -> None:
        """Replace the ACLs of each user by others that allow the same."""
        for user in (*SCRAM_USERS, *TOKEN_USERS):
            self.administrator.allow(user, ResourceType.TOPIC, SOURCE[:3], PREFIXED)
            assert self.administrator.revoke(user, ResourceType.TOPIC, SOURCE) == 1
            self.administrator.allow(user, ResourceType.TOPIC, SOURCE)
            assert self.administrator.revoke(user, ResourceType.TOPIC, SOURCE[:3], PREFIXED) == 1

    def verify_rights(self) -> None:
        """Take the ACLs of the visitor, whose open connections lose the rights, and restore them."""
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


def quiet() -> Span:
    """Let time pass without a replacement, and return it."""
    begin_s = time.monotonic()
    time.sleep(QUIET_S)
    return begin_s, time.monotonic()


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


def latencies_in(world: World, *spans: Span) -> list[float]:
    """Return the sorted times from sending to acknowledgement, in ms, of the records sent in any of the spans."""
    return sorted(
        (acknowledged_s - sent_s) * 1000
        for offsets in world.acknowledged.values()
        for sent_s, acknowledged_s in offsets.values()
        if any(begin_s <= sent_s < end_s for begin_s, end_s in spans)
    )


def judge(world: World, replaced: Sequence[Measured]) -> None:
    """Print the latencies of each kind; it is a finding if p99 is more than `MAX_RATIO` times that without replacement.

    A ratio compares a replacement with the time around it. It is judged by the median of the rounds, since other
    processes delay single ones.
    """
    world.read()
    for kind in dict.fromkeys(each.kind for each in replaced):
        rounds = [each for each in replaced if each.kind == kind]
        found = [latencies_in(world, each.replacing) for each in rounds]
        around = [latencies_in(world, *each.quiet) for each in rounds]
        ratio = median(percentile(a, 0.99) / percentile(b, 0.99) for a, b in zip(found, around, strict=True))
        world.prove(
            f"{kind}, {len(rounds)} times: latency {described(found)}, without replacement {described(around)}; p99 is"
            f" {ratio:.2f} times as long"
        )
        if ratio > MAX_RATIO:
            world.broken(f"{kind} delays records: p99 is {ratio:.2f} times that without a replacement")


def described(rounds: Sequence[Sequence[float]]) -> str:
    """Return the latencies of rounds, each sorted, as text."""
    p50, p99 = (median(percentile(each, share) for each in rounds) for share in (0.5, 0.99))
    longest, count = max(each[-1] for each in rounds), sum(map(len, rounds))
    return f"p50 {p50:.0f} ms, p99 {p99:.0f} ms, maximum {longest:.0f} ms of {count:,} records"


# Cells


def rotation(world: World) -> None:
    """Replace everything in turn, several times, and judge the latencies."""
    turn = Rotation(world)
    for _ in range(ROUNDS):
        turn.measure("server certificate", turn.certificate)
        turn.measure("CA", turn.authority)
        turn.measure(PASSWORDS, turn.passwords, turn.verify_passwords)
        turn.measure("ACLs", turn.rights, turn.verify_rights)
        turn.measure("token keys", turn.token_keys)
    turn.check_errors()
    judge(world, turn.replaced)
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
    turn.verify_passwords()
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
