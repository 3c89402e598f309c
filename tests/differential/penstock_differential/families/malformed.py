"""Malformed requests: truncated, too long, with wrong counts and lengths, or with unknown versions."""

from __future__ import annotations

from penstock.wire.apis import APIS
from penstock_differential import codec
from penstock_differential.case import Case
from penstock_differential.coverage import SERVED
from penstock_differential.families import family
from penstock_differential.families.world import join_tree, offset_fetch_tree
from penstock_differential.values import Tree, resolve

NAME = "malformed"
EXAMPLES: dict[str, Tree] = {
    "Metadata": {"topics": [{"name": NAME}]},
    "FindCoordinator": {"key": NAME, "coordinator_keys": [NAME]},
    "ListOffsets": {"replica_id": -1, "topics": [{"name": NAME, "partitions": [{"timestamp": -1}]}]},
    "DescribeConfigs": {"resources": [{"resource_type": 2, "resource_name": NAME, "configuration_keys": None}]},
    "DeleteTopics": {"topics": [{"name": NAME}], "topic_names": [NAME], "timeout_ms": 30_000},
    "DescribeGroups": {"groups": [NAME]},
    "Heartbeat": {"group_id": NAME, "member_id": NAME},
    "OffsetFetch": {"group_id": NAME, "topics": []},
    "DeleteGroups": {"groups_names": [NAME]},
    "ListGroups": {},
    "InitProducerId": {"transactional_id": None, "transaction_timeout_ms": 1},
    "JoinGroup": join_tree(NAME, NAME),
    "AddOffsetsToTxn": {"transactional_id": NAME, "producer_id": 5, "group_id": NAME},
}


@family(*sorted(EXAMPLES), weight=2, cluster=False)
def malformed(case: Case) -> None:
    """A valid request with changed bytes; each one uses a new connection."""
    for _ in range(6):
        api = case.rng.choice(sorted(EXAMPLES))
        version = case.version(api)
        tree = offset_fetch_tree(NAME, None, max(version, 2)) if api == "OffsetFetch" else EXAMPLES[api]
        frame = bytearray(codec.request_frame(api, version, resolve(tree, {})))
        kind = case.rng.choice(["cut", "cut", "longer", "count"])
        if kind == "cut":
            del frame[len(frame) - case.rng.randrange(1, max(2, len(frame) - 24)) :]
        elif kind == "longer":
            frame += b"\0" * case.rng.choice([1, 4, 9])
        else:
            at = case.rng.randrange(24, len(frame)) if len(frame) > 24 else len(frame) - 1
            frame[at] = case.rng.choice([0x7F, 0xFF, 0x80])
        sent = codec.with_size(frame)
        what = {"kind": kind, "frame": sent[4:].hex()}
        case.ask_frames(api, version, sent, what, f"malformed-{case.rng.random()}")


@family(*SERVED, weight=1, cluster=False)
def unknown_versions(case: Case) -> None:
    """Versions that neither side serves."""
    for _ in range(4):
        api = case.rng.choice(SERVED)
        version = case.rng.choice([APIS[codec.api_key(api)].last + 3, 99, 32767, -1])
        head = codec.api_key(api).to_bytes(2, "big") + version.to_bytes(2, "big", signed=True)
        frame = codec.with_size(b"\0\0\0\0" + head + codec.CORRELATION_ID.to_bytes(4, "big") + b"\xff\xff" + b"\0" * 8)
        what = {"kind": "version", "version": version}
        case.ask_frames(api, 0, frame, what, f"malformed-{case.rng.random()}")
