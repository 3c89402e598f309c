"""Users with real components only."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from brokers.secured_kit import SecuredBroker, produced
from topics_live.live_kit import Live

DEADLINE_S = 100.0

pytestmark = pytest.mark.timeout(300)


def user(**spec: Any) -> dict[str, Any]:
    metadata = {"name": "billing"}
    body = {"apiVersion": "penstock.io/v1beta1", "kind": "User", "metadata": metadata}
    return {**body, "spec": {"clusterRef": {"name": "c"}, **spec}}


def properties(live: Live) -> str:
    """Return the file of the Secret."""
    secret = json.loads(live.kubectl.must("get", "secret", "billing", "-o", "json"))
    return base64.b64decode(secret["data"]["client.properties"]).decode()


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what}"
        time.sleep(0.2)


def test_a_user_logs_in_rotates_and_is_revoked(live: Live, secured: SecuredBroker) -> None:
    live.apply("orders", partitions=1, replicas=1)
    live.kubectl.apply(user(acls=[{"topic": "orders", "operations": ["Write"]}]))
    live.ready("orders")
    wait = ("wait", "--for=condition=Ready", "--timeout=50s", "user.penstock.io/billing")
    live.kubectl.must(*wait)
    head, row = (line.split() for line in live.kubectl.must("get", "puser", "billing").splitlines())
    assert head == ["NAME", "READY", "AUTHENTICATION", "ACLS", "ROTATED", "AGE"]
    assert row[:4] == ["billing", "True", "scram-sha-512", "1"]
    first = properties(live)
    assert produced(first, secured.sasl, "orders") == "ok"

    live.kubectl.must("annotate", "user.penstock.io", "billing", "penstock.io/rotate-password=once")
    until(lambda: properties(live) != first, "another password in the Secret")
    until(lambda: produced(properties(live), secured.sasl, "orders") == "ok", "the brokers have the new password")
    assert produced(first, secured.sasl, "orders") == "_AUTHENTICATION"

    live.kubectl.must("patch", "secret", "billing", "-p", json.dumps({"stringData": {"password": "by-hand"}}))
    until(lambda: "sasl.password=by-hand" in properties(live), "files with the password of the user")
    until(lambda: produced(properties(live), secured.sasl, "orders") == "ok", "the brokers have that password")

    third = properties(live)
    live.kubectl.must("delete", "user.penstock.io", "billing")
    until(lambda: produced(third, secured.sasl, "orders") == "_AUTHENTICATION", "the user is revoked")
    log = (live.home / "operator.log").read_text()
    assert "by-hand" not in log
