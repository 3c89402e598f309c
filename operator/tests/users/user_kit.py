"""Environment for user tests without an engine: API server, brokers, and a queue driven by the test."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

from doubles.brokers import InMemoryBrokers
from doubles.kube import EPOCH, FakeKube

from penstock_operator.engine.routing import Routing
from penstock_operator.model.common import ObjectKey
from penstock_operator.model.parse import parse
from penstock_operator.model.user import User
from penstock_operator.ports.access import AclEntry
from penstock_operator.ports.brokers import BrokerGateway
from penstock_operator.ports.kube import CLUSTERS, CONFIG_MAPS, SECRETS, USERS, Object
from penstock_operator.users.controller import UserController

NS, CLUSTER = "ns", "c"
EPOCH_S = EPOCH.timestamp()
MAX_TURNS = 100
MIN_SECRET = 8
"""Shorter values are in other texts by chance."""
SCRAM = "SCRAM-SHA-512"
READ_ORDERS: dict[str, Any] = {"topic": "orders", "operations": ["Read"]}
SECRET_KEYS = re.compile(r"(?:^|\.)(?:password|key|jaas\.config)$|^fingerprint-key$")
"""Keys of Secrets whose values are nowhere else; the others are public, or consist of these."""
ORDERS = AclEntry("TOPIC", "LITERAL", "orders", "READ")
BILLS = AclEntry("TOPIC", "LITERAL", "bills", "READ")


class UserWorld:
    """One namespace with a Cluster. `restart` starts another operator, without in-memory state."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.kube = FakeKube(now=lambda: self.time)
        self.brokers = InMemoryBrokers()
        self.gateways: dict[tuple[str, str], BrokerGateway] = {(NS, CLUSTER): self.brokers}
        self.due: dict[ObjectKey, float] = {}
        self.routing = Routing(self.kube.objects, self)
        self.errors: list[str] = []
        self.controller = self.restart()
        self.kube.put(CLUSTERS, {"metadata": {"name": CLUSTER, "namespace": NS}, "spec": {}})

    def put(self, key: ObjectKey, delay_s: float = 0.0) -> None:
        """Implement `engine.ports.Queue`."""
        at = self.time + delay_s
        self.due[key] = min(at, self.due.get(key, at))

    def gateway_for(self, namespace: str, cluster: str) -> BrokerGateway | None:
        """Implement `engine.ports.ConnectionPool`."""
        return self.gateways.get((namespace, cluster))

    def restart(self) -> UserController:
        self.controller = UserController(
            self.kube, self.kube.objects, self, self, now=lambda: self.time, wall=lambda: EPOCH_S + self.time
        )
        return self.controller

    def apply(self, name: str, *, annotations: dict[str, str] | None = None, **spec: Any) -> Object:
        metadata = {"name": name, "namespace": NS, "annotations": annotations or {}}
        return self.kube.put(USERS, {"metadata": metadata, "spec": {"clusterRef": {"name": CLUSTER}, **spec}})

    def delete(self, name: str) -> Object:
        return self.kube.remove(USERS, NS, name)

    def vanish(self, name: str) -> None:
        """Delete an object without a DELETED event: it is missing in the next list."""
        del self.kube.stored[USERS, NS, name]
        there = {(namespace, name) for resource, namespace, name in self.kube.stored if resource == USERS}
        self.kube.objects.apply_list(USERS, None, there, "1000000")

    async def run(self, within_s: float = 3.0) -> None:
        """Reconcile keys until none is due within the given seconds, advancing time."""
        until = self.time + within_s
        for _ in range(MAX_TURNS):
            users = {key: at for key, at in self.due.items() if key.kind == "User" and at <= until}
            if not users:
                self.check_secrets()
                return
            self.time = max(self.time, min(users.values()))
            keys = sorted(key for key, at in users.items() if at <= self.time)[: self.controller.batch]
            for key in keys:
                del self.due[key]
            results = await self.controller.reconcile(keys)
            assert results.keys() == set(keys), "each key has a result"
            for key, result in results.items():
                if result.error is not None:
                    self.errors.append(result.error)
                    self.put(key, 1.0)
                elif result.requeue_after_s is not None:
                    self.put(key, result.requeue_after_s)
        raise AssertionError(f"it does not come to rest: {sorted(self.due)[:5]}")

    def check_secrets(self) -> None:
        """Check that statuses, Events, records and errors have no value of a Secret."""
        secrets = [body for (resource, *_), body in self.kube.stored.items() if resource == SECRETS]
        others = [body for (resource, *_), body in self.kube.stored.items() if resource != SECRETS]
        written = json.dumps([others, [str(event) for event in self.kube.recorded], self.errors])
        for secret in secrets:
            for key, value in (secret.get("data") or {}).items():
                text = base64.b64decode(value).decode("latin-1")
                if SECRET_KEYS.search(key) and len(text) >= MIN_SECRET:
                    assert json.dumps(text)[1:-1] not in written, f"{key} of {secret['metadata']['name']}"
                    assert value not in written, f"{key} of {secret['metadata']['name']}"

    async def resync(self) -> None:
        await self.controller.resync()
        await self.run()
        self.time += 60

    def user(self, name: str = "ana") -> User:
        body = self.kube.read(USERS, NS, name)
        assert body is not None, f"User {name} exists"
        return parse("User", body)

    def condition(self, kind: str = "Ready", name: str = "ana") -> tuple[str, str]:
        """Return status and reason."""
        found = {c.type: c for c in self.user(name).status.conditions}[kind]
        assert found.observed_generation == self.user(name).metadata.generation
        return found.status, found.reason

    def message(self, kind: str = "Ready", name: str = "ana") -> str:
        return {c.type: c for c in self.user(name).status.conditions}[kind].message

    def secret(self, name: str = "ana") -> dict[str, str]:
        """Return the content of a Secret as text."""
        body = self.kube.read(SECRETS, NS, name)
        assert body is not None, f"Secret {name} exists"
        return {key: base64.b64decode(value).decode("latin-1") for key, value in body["data"].items()}

    def write_secret(self, name: str, **data: str) -> Object:
        """Create or change a Secret, as a user would."""
        before = (self.kube.read(SECRETS, NS, name) or {}).get("data", {})
        encoded = {key.replace("_", "."): base64.b64encode(value.encode()).decode() for key, value in data.items()}
        metadata = {"name": name, "namespace": NS}
        return self.kube.put(SECRETS, {"metadata": metadata, "data": {**before, **encoded}})

    def acls(self, principal: str = "User:ana") -> set[AclEntry]:
        return self.brokers.acls_by_principal.get(principal, set())

    def records(self) -> list[str]:
        """Return the recorded owners, as JSON."""
        return list(((self.kube.read(CONFIG_MAPS, NS, f"{CLUSTER}-users") or {}).get("data") or {}).values())

    @property
    def reasons(self) -> list[str]:
        return [event.reason for _, event in self.kube.recorded]
