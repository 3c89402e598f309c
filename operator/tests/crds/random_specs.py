"""Random valid resources, generated from the model types."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

from penstock_operator.model.access import OPERATIONS, RESOURCE_FIELDS, UserAcl
from penstock_operator.model.cluster import Cluster, ClusterSpec
from penstock_operator.model.common import ObjectMeta
from penstock_operator.model.fields import unwrapped
from penstock_operator.model.group import ConsumerGroup, ConsumerGroupSpec
from penstock_operator.model.parse import Resource
from penstock_operator.model.topic import Topic, TopicSpec
from penstock_operator.model.user import User, UserSpec
from penstock_operator.specs.quantity import amount

Strategy = st.SearchStrategy[Any]

LABELS = st.dictionaries(st.from_regex(r"[a-z]{1,20}", fullmatch=True), st.from_regex(r"[a-z]{0,20}", fullmatch=True))
AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "memory"]), st.sampled_from([1, "500m", "4Gi"]))

# Rules of the CRDs and of Kubernetes beyond the types.
FIELDS: dict[str, Strategy] = {
    "acls": st.deferred(lambda: st.lists(struct_of(UserAcl), max_size=5)),
    "affinity": st.just({"nodeAffinity": {"anything": [1]}}),
    "annotations": LABELS,
    "class_name": st.from_regex(r"[a-z]{1,20}", fullmatch=True),
    "endpoints": st.lists(st.sampled_from(["http://a:2379", "http://b.c:1/", "http://[::1]"]), unique=True, min_size=1),
    "certificates": st.sampled_from(
        [
            {},
            {"validityDays": 10, "renewBeforeDays": 3, "caValidityDays": 20, "caOverlapHours": 0},
            {"source": "secret", "secretName": "a", "clientCaSecret": "b"},
            {"source": "secret", "issuerRef": {"name": "a", "kind": "ClusterIssuer"}},
        ]
    ),
    "host": st.from_regex(r"[A-Za-z0-9.:-]{1,50}", fullmatch=True),
    "image_pull_secrets": st.lists(st.just({"name": "a"}), max_size=2),
    "key": st.from_regex(r"[-._a-zA-Z0-9]{1,30}", fullmatch=True),
    "listeners": st.lists(
        st.sampled_from(
            [
                {"name": "a", "port": 9093},
                {"name": "b1", "port": 9094, "type": "nodeport", "host": "b{ordinal}.example.org"},
                {"name": "c", "port": 9095, "type": "loadbalancer", "authentication": "tls", "annotations": {"a": "b"}},
                {
                    "name": "f",
                    "port": 9098,
                    "type": "tlsroute",
                    "host": "b{ordinal}.example.org",
                    "route": {"gateway": "edge", "namespace": "gateways", "bootstrapHost": "kafka.example.org"},
                },
                {"name": "d", "port": 9096, "tls": False, "authentication": "none"},
                {
                    "name": "e",
                    "port": 9097,
                    "authentication": "oauth",
                    "oauth": {"jwksUrl": "https://a", "issuer": "b", "audience": "c"},
                },
            ]
        ),
        unique_by=lambda listener: listener["name"],
    ),
    "bucket": st.from_regex(r"[a-z][a-z0-9.-]{2,30}", fullmatch=True),
    "endpoint": st.just("https://s3.example.com:9000"),
    "hosts": st.lists(st.from_regex(r"[a-z][a-z0-9.]{0,30}", fullmatch=True), min_size=1, max_size=3),
    "mount_path": st.from_regex(r"/[a-z/]{0,30}", fullmatch=True),
    "name": st.from_regex(r"[a-z][a-z0-9]{5,20}", fullmatch=True).filter(lambda n: n not in ("plaintext", "internal")),
    "node_selector": LABELS,
    "operations": st.lists(st.sampled_from(OPERATIONS["topic"]), unique=True, min_size=1),
    "pod_annotations": LABELS,
    "pod_labels": LABELS,
    "port": st.integers(10_000, 20_000),
    "resources": st.fixed_dictionaries({}, optional={"requests": AMOUNTS, "limits": AMOUNTS}).filter(
        lambda found: all(
            amount(str(found["requests"][name])) <= amount(str(limit))
            for name, limit in found.get("limits", {}).items()
            if name in found.get("requests", {})
        )
    ),
    "request": st.from_regex(r"[A-Za-z0-9._-]{1,63}", fullmatch=True),
    "snapshot": st.just("etcd-20260310T120000Z"),
    "stateful_set": st.from_regex(r"[a-z]([a-z0-9-]{0,50}[a-z0-9])?", fullmatch=True),
    "size": st.from_regex(r"[1-9][0-9]{0,5}(Mi|Gi|G|k)?", fullmatch=True),
    "tolerations": st.lists(st.fixed_dictionaries({}, optional={"key": st.just("a"), "operator": st.just("Exists")})),
    "topic_name": st.from_regex(r"[a-zA-Z0-9._-]{3,249}", fullmatch=True),
    "topology_spread_constraints": st.just(
        ({"maxSkew": 2, "topologyKey": "a", "whenUnsatisfiable": "ScheduleAnyway", "matchLabelKeys": ["b"]},)
    ),
    "topics": st.lists(st.from_regex(r"[a-zA-Z0-9._-]{3,40}", fullmatch=True), unique=True, min_size=1, max_size=5),
    "partitions": st.integers(1, 10_000),
    "user_name": st.from_regex(r"[a-zA-Z0-9=,.]([a-zA-Z0-9=,. ]{0,100}[a-z])?", fullmatch=True),
}
CONFIGS: dict[type, Strategy] = {
    TopicSpec: st.fixed_dictionaries(
        {},
        optional={
            "retention.ms": st.integers(-1, 2**63 - 1).map(str),
            "cleanup.policy": st.sampled_from(["compact", "delete", "delete,compact"]),
            "min.cleanable.dirty.ratio": st.sampled_from(["0", "0.25", "1", ".5"]),
        },
    ),
    ConsumerGroupSpec: st.fixed_dictionaries(
        {},
        optional={
            "share.delivery.count.limit": st.integers(2, 10).map(str),
            "share.isolation.level": st.just("read_committed"),
        },
    ),
    ClusterSpec: st.fixed_dictionaries(
        {}, optional={"num.partitions": st.integers(1, 1000).map(str), "log.cleanup.policy": st.just("compact")}
    ),
}
TEXT = st.characters(codec="utf-8", exclude_categories=("Cs", "Cc"))


def value_of(type_: inspect.Type) -> Strategy:
    inner, _, _ = unwrapped(type_)
    match inner:
        case inspect.BoolType():
            return st.booleans()
        case inspect.IntType(ge=low, le=high):
            return st.integers(0 if low is None else low, 2**40 if high is None else high)
        case inspect.LiteralType(values=values):
            return st.sampled_from(values)
        case inspect.StrType(min_length=low, max_length=high):
            return st.text(TEXT, min_size=low or 0, max_size=min(high or 30, 30))
        case inspect.StructType(cls=cls):
            return struct_of(cls)
    raise TypeError(f"{inner} needs a strategy in FIELDS")


def struct_of(cls: type[msgspec.Struct]) -> Strategy:
    info = inspect.type_info(cls)
    assert isinstance(info, inspect.StructType)
    required: dict[str, Strategy] = {}
    optional: dict[str, Strategy] = {}
    for field in info.fields:
        if field.name == "config":
            strategy = CONFIGS[cls]
        else:
            strategy = FIELDS[field.name] if field.name in FIELDS else value_of(field.type)
        (required if field.required else optional)[field.encode_name] = strategy
    return st.fixed_dictionaries(required, optional=optional).map(SETTLED.get(cls.__name__, lambda made: made))


def settled_etcd(made: dict[str, Any]) -> dict[str, Any]:
    if "sidecar" in made:
        return {"sidecar": made["sidecar"]}
    if "certificate" in made:
        made.pop("tlsSecret", None)
    if "statefulSet" in made:
        made["managed"] = True
    else:
        made.pop("storage", None)
    if "statefulSet" not in made or "snapshots" not in made:
        made.pop("restore", None)
    return {"endpoints": ["http://etcd:2379"]} | made


def settled_snapshots(made: dict[str, Any]) -> dict[str, Any]:
    if "objectStore" in made:
        made.pop("volume", None)
        return made
    return {"volume": {"claimName": "snapshots"}} | made


def settled_cluster(made: dict[str, Any]) -> dict[str, Any]:
    if "sidecar" in made["etcd"] and made.get("brokers", {}).get("replicas") == 2:
        made["brokers"]["replicas"] = 3
    if "external" in made:
        made["external"]["port"] = 9999
        made.pop("listeners", None)
    if not made.get("listeners"):
        made["etcd"].pop("certificate", None)
    return made


def settled_external(made: dict[str, Any]) -> dict[str, Any]:
    return made if made["type"] == "NodePort" else {k: v for k, v in made.items() if k != "host"}


def settled_reset(made: dict[str, Any]) -> dict[str, Any]:
    """Keep one target, and partitions only with a single topic."""
    targets = {"timestamp": "2026-02-28T23:59:59.123Z", "offset": 7}
    made = {k: v for k, v in made.items() if k not in (*targets, "partitions")}
    if made["to"] in targets:
        made[made["to"]] = targets[made["to"]]
    return made | ({"partitions": [0, 3]} if len(made.get("topics", ())) == 1 else {})


def settled_replay(made: dict[str, Any]) -> dict[str, Any]:
    """Give names and times the format that they need."""
    valid = {
        "since": "2026-02-28T22:59:59.123Z", "until": "2026-03-01T00:00:00+01:00", "topic": "orders", "to": "repaired"
    }  # fmt: skip
    return {k: valid.get(k, v) for k, v in made.items()}


def settled_acl(made: dict[str, Any]) -> dict[str, Any]:
    """Keep one resource, and the operations that it has."""
    given = [field for field in RESOURCE_FIELDS if field in made]
    field = given[0] if given else "topic"
    made = {k: v for k, v in made.items() if k not in RESOURCE_FIELDS} | {field: made.get(field, "orders")}
    if field == "cluster":
        made |= {"cluster": True, "prefix": False}
    operations = [operation for operation in made["operations"] if operation in OPERATIONS[field]]
    return made | {"operations": operations or ["All"]}


def settled_authentication(made: dict[str, Any]) -> dict[str, Any]:
    if made.get("type", "scram-sha-512").startswith("scram"):
        return made
    return {k: v for k, v in made.items() if k not in ("passwordSecretRef", "secretName")}


def settled_user(made: dict[str, Any]) -> dict[str, Any]:
    if made.get("principalType") == "Group":
        made = {k: v for k, v in made.items() if k != "quotas"} | {"authentication": {"type": "oauth"}}
    return made


SETTLED: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "Etcd": settled_etcd,
    "Snapshots": settled_snapshots,
    "ClusterSpec": settled_cluster,
    "ExternalListener": settled_external,
    "DeadLetterReplay": settled_replay,
    "OffsetReset": settled_reset,
    "UserAcl": settled_acl,
    "UserAuthentication": settled_authentication,
    "UserSpec": settled_user,
}

SPECS: dict[type[Resource], type[msgspec.Struct]] = {
    Cluster: ClusterSpec,
    Topic: TopicSpec,
    ConsumerGroup: ConsumerGroupSpec,
    User: UserSpec,
}


def resources() -> st.SearchStrategy[Resource]:
    return st.sampled_from(list(SPECS)).flatmap(
        lambda kind: struct_of(SPECS[kind]).map(lambda spec: made_of(kind, spec))
    )


def made_of(kind: type[Resource], spec: dict[str, Any]) -> Resource:
    meta = ObjectMeta(name="a", namespace="b", uid="c")
    return kind(metadata=meta, spec=msgspec.convert(spec, SPECS[kind]))  # type: ignore[arg-type]


def examples(seed: int, count: int) -> list[Resource]:
    """Return random objects, reproducible by seed."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as seeded

    found: list[Resource] = []

    @seeded(seed)
    @settings(max_examples=count, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(resources())
    def collect(value: Resource) -> None:
        found.append(value)

    collect()
    return random.Random(seed).sample(found, min(count, len(found)))
