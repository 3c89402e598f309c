"""Credentials that the operator replaces under load: the brokers' certificate, the CA, passwords, rights.

No client may report an error, except one with an old password; no message may be lost, repeated or out of order. The
output has latencies with and without a replacement.
"""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from penstock_kubernetes.clients import PhasedLoad
from penstock_kubernetes.kubectl import Object, eventually
from penstock_kubernetes.release import CLUSTERS, NAME, TOPICS, USERS, Make, Release

pytestmark = pytest.mark.full

BROKERS = 3
TOPIC = "load"
ROTATED, OTHER = "ana", "ben"
ANY_GROUP: Object = {"group": "*", "operations": ["Read"]}
LOAD_ACLS: list[Object] = [{"topic": TOPIC, "operations": ["All"]}, ANY_GROUP]
WIDER_ACLS: list[Object] = [{"topic": TOPIC[:2], "prefix": True, "operations": ["All"]}, ANY_GROUP]
QUIET, REPLACING, AFTER = "no replacement", "replacement", "afterwards"
MEASURED_S = 15.0
RECONNECT_S = 2.0
PROBE_S = 2.0
KUBELET_S = 240.0
"""A kubelet updates the files of a Secret within about 90 seconds."""
CERTIFICATES = """
import hashlib, json, ssl, sys
presented = [ssl.get_server_certificate((host, 9093), timeout=10) for host in sys.argv[1:]]
print(json.dumps([hashlib.sha256(each.encode()).hexdigest() for each in presented]))
"""


@pytest.fixture(scope="module")
def release(make_release: Make) -> Release:
    overlap = "cluster.certificates.caOverlapHours=1"
    release: Release = make_release("rotation", brokers=BROKERS, values=(overlap,))
    release.install()
    release.kubectl.apply(
        release.topic(TOPIC, partitions=6, replicas=BROKERS),
        release.user(ROTATED, acls=LOAD_ACLS),
        release.user(OTHER, acls=LOAD_ACLS),
    )
    release.kubectl.wait(TOPICS, TOPIC)
    for user in (ROTATED, OTHER):
        release.kubectl.wait(USERS, user)
    return release


@contextmanager
def under_load(release: Release, probe: Callable[[], object], *loads: PhasedLoad) -> Iterator[None]:
    """Run loads, and measure their latencies during the block, and before and after it. The brokers must not restart.

    `probe` is how the test observes the replacement. It competes with the load for processors, so all phases have it.
    """
    pods = {name: (pod["metadata"]["uid"], restarts(pod)) for name, pod in release.brokers().items()}
    with ExitStack() as stack:
        for load in loads:
            stack.enter_context(load)
        for phase in (QUIET, REPLACING, AFTER):
            for load in loads:
                load.begin(phase)
            if phase == REPLACING:
                yield
                continue
            until_s = time.monotonic() + MEASURED_S
            while time.monotonic() < until_s:
                probe()
                time.sleep(PROBE_S)
    found = {name: (pod["metadata"]["uid"], restarts(pod)) for name, pod in release.brokers().items()}
    assert found == pods, "brokers restarted"


def restarts(pod: Object) -> int:
    return sum(int(each["restartCount"]) for each in (pod.get("status") or {}).get("containerStatuses") or ())


def presented(release: Release) -> list[str]:
    """Return a digest of the certificate that each broker presents to clients."""
    hosts = [f"{NAME}-broker-{n}.{NAME}-brokers.{release.namespace}.svc" for n in range(BROKERS)]
    return [str(each) for each in json.loads(release.clients.run("python", "-c", CERTIFICATES, *hosts))]


def exchange(release: Release, connection: str) -> dict[str, Any]:
    """Produce and consume a message with a new client; return errors."""
    return dict(json.loads(release.clients.run("python", "load.py", "exchange", connection, TOPIC, ROTATED)))


def changed(connection: str, **settings: str) -> str:
    """Return a connection with other settings; `_` stands for dots in names."""
    return json.dumps(json.loads(connection) | {name.replace("_", "."): text for name, text in settings.items()})


def authority(release: Release) -> str:
    """Return the CA certificates that clients are to trust."""
    secret = release.kubectl.get("secret", f"{NAME}-ca") or {}
    return base64.b64decode(secret["data"]["ca.crt"]).decode()


def test_a_renewed_certificate_is_presented_without_a_restart(release: Release) -> None:
    before = presented(release)
    kept = release.clients.phased_load(release.connection, TOPIC)
    anew = release.clients.phased_load(release.connection, TOPIC, RECONNECT_S)

    def are_renewed() -> bool:
        now = presented(release)
        return len(set(now)) == 1 and not set(now) & set(before)

    with under_load(release, lambda: presented(release), kept, anew):
        spec = {"spec": {"certificates": {"validityDays": 91, "renewBeforeDays": 90}}}
        release.kubectl.patch(CLUSTERS, NAME, spec)
        eventually("all brokers present the renewed certificate", are_renewed, KUBELET_S, PROBE_S)
    kept.verify()
    anew.verify()


def test_the_ca_is_replaced_while_clients_that_trust_both_connect(release: Release) -> None:
    old = authority(release)
    kept = release.clients.phased_load(release.connection, TOPIC)
    with under_load(release, lambda: authority(release), kept):
        release.kubectl("annotate", CLUSTERS, NAME, "penstock.io/rotate-ca=once")
        both = eventually("both CAs are published", lambda: authority(release) != old and authority(release), 60)
        assert both.count("BEGIN CERTIFICATE") == 2
        anew = release.clients.phased_load(changed(release.connection, ssl_ca_pem=both), TOPIC, RECONNECT_S)
        with under_load(release, lambda: authority(release), anew):
            release.kubectl.patch(CLUSTERS, NAME, {"spec": {"certificates": {"caOverlapHours": 0}}})
            is_single = lambda: authority(release).count("BEGIN CERTIFICATE") == 1  # noqa: E731
            eventually("the old CA is removed", is_single, 3 * KUBELET_S, PROBE_S)
            assert authority(release) != old
            reason = lambda: release.kubectl.condition(CLUSTERS, NAME, "Certificates").get("reason")  # noqa: E731
            eventually("the rollover is complete", lambda: reason() == "Issued", 60)
    present = changed(release.connection, ssl_ca_pem=authority(release))
    kept.verify(present)
    anew.verify(present)
    assert exchange(release, present)["errors"] == []
    assert exchange(release, changed(release.connection, ssl_ca_pem=old))["errors"], "the old CA is not trusted"
    release.connection = present


def annotate(release: Release) -> None:
    release.kubectl("annotate", USERS, ROTATED, f"penstock.io/rotate-password={secrets.token_hex(4)}", "--overwrite")


def write_password(release: Release) -> None:
    password = base64.b64encode(secrets.token_hex(12).encode()).decode()
    release.kubectl.patch("secret", ROTATED, {"data": {"password": password}})


@pytest.mark.parametrize("replace", [annotate, write_password])
def test_a_password_is_replaced_while_connections_of_its_user_stay(
    release: Release, replace: Callable[[Release], None]
) -> None:
    old = release.connection_of(ROTATED)
    kept = release.clients.phased_load(old, TOPIC)
    anew = release.clients.phased_load(release.connection_of(OTHER), TOPIC, RECONNECT_S)
    with under_load(release, lambda: exchange(release, release.connection), kept, anew):
        replace(release)
        new = eventually(
            "the files of the Secret have the new password",
            lambda: release.connection_of(ROTATED) if release.connection_of(ROTATED) != old else "",
            KUBELET_S,
        )
        eventually("the new password is accepted", lambda: exchange(release, new)["errors"] == [], 60, PROBE_S)
        assert "_AUTHENTICATION" in exchange(release, old)["all_errors"]
    kept.verify(new)
    anew.verify()


def test_rights_are_replaced_while_their_user_produces_and_consumes(release: Release) -> None:
    connection = release.connection_of(ROTATED)
    kept = release.clients.phased_load(connection, TOPIC)
    anew = release.clients.phased_load(connection, TOPIC, RECONNECT_S)
    with under_load(release, lambda: patterns(release), kept, anew):
        for acls, pattern in ((WIDER_ACLS, "PREFIXED"), (LOAD_ACLS, "LITERAL"), (WIDER_ACLS, "PREFIXED")):
            release.kubectl.patch(USERS, ROTATED, {"spec": {"acls": acls}})
            eventually(
                f"the ACL of the topic is {pattern}",
                lambda pattern=pattern: patterns(release) == {pattern},
                60,
                PROBE_S,
            )
    kept.verify()
    anew.verify()
    release.kubectl.patch(USERS, ROTATED, {"spec": {"acls": LOAD_ACLS[1:]}})
    refused = lambda: exchange(release, connection)["errors"] == ["TOPIC_AUTHORIZATION_FAILED"]  # noqa: E731
    eventually("the right is revoked", refused, 60)


def patterns(release: Release) -> set[str]:
    """Return the pattern types of the user's ACLs for topics."""
    found = json.loads(release.penstock("acl", "list", f"User:{ROTATED}", "--output", "json"))
    return {str(each["pattern_type"]) for each in found if each["resource_type"] == "TOPIC"}
