"""Stores the owners of principals in the ConfigMap `CLUSTER-users`. Used by `batch` and `orphans`.

Topics and groups store their owner as a setting at the brokers; credentials, ACLs and quotas have no place for it. The
ConfigMap has one entry per principal, so that a change is one merge patch, whatever other entries say. It belongs to
the Cluster. At about 150 bytes per user, its limit of 1 MiB suffices for 5,000 users of a cluster.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from penstock_operator.model.common import API_VERSION
from penstock_operator.ports.kube import CONFIG_MAPS, Kube, KubeError, Object
from penstock_operator.reconcile.user.types import UserOwner
from penstock_operator.specs.user_secret import MANAGED_BY

_ENCODER, _DECODER = msgspec.json.Encoder(), msgspec.json.Decoder(UserOwner)


class OwnerRecords:
    """The owners of the principals of one cluster. `cluster` is the Cluster object. All methods raise `KubeError`."""

    def __init__(self, kube: Kube, cluster: Object) -> None:
        self._kube, self._cluster = kube, cluster
        self._namespace = str(cluster["metadata"]["namespace"])
        self._name = records_name(str(cluster["metadata"]["name"]))

    async def read(self) -> dict[str, UserOwner]:
        """Return the owners by principal. Ignores entries that cannot be parsed, such as those of a newer operator."""
        body = await self._kube.get(CONFIG_MAPS, self._namespace, self._name)
        found = {}
        for key, text in ((body or {}).get("data") or {}).items():
            try:
                owner = _DECODER.decode(text)
            except msgspec.DecodeError:
                continue
            if key == entry_key(owner.principal):
                found[owner.principal] = owner
        return found

    async def put(self, owner: UserOwner) -> None:
        """Create or replace the entry of a principal."""
        entry = {entry_key(owner.principal): _ENCODER.encode(owner).decode()}
        if await self._patch(entry):
            return
        try:
            await self._kube.create(CONFIG_MAPS, self._namespace, self._body(entry))
        except KubeError as error:
            # Another user of the same batch created it meanwhile.
            if error.status != 409 or not await self._patch(entry):
                raise

    async def remove(self, principal: str) -> None:
        """Remove the entry of a principal."""
        await self._patch({entry_key(principal): None})

    async def _patch(self, data: Mapping[str, str | None]) -> bool:
        """Change entries. Return whether the ConfigMap exists."""
        return await self._kube.patch(CONFIG_MAPS, self._namespace, self._name, {"data": dict(data)}) is not None

    def _body(self, data: dict[str, str]) -> Object:
        name, uid = self._cluster["metadata"]["name"], self._cluster["metadata"]["uid"]
        owner = {"apiVersion": API_VERSION, "kind": "Cluster", "name": name, "uid": uid, "controller": True}
        metadata = {
            "name": self._name, "namespace": self._namespace, "labels": dict(MANAGED_BY), "ownerReferences": [owner],
        }  # fmt: skip
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def records_name(cluster: str) -> str:
    """Return the name of a cluster's ConfigMap."""
    return f"{cluster}-users"


def entry_key(principal: str) -> str:
    """Return the key of a principal's entry: its name may have characters that a key cannot have."""
    return hashlib.sha256(principal.encode()).hexdigest()[:32]
