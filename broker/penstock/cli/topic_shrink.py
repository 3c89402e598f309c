"""What `penstock topic describe` shows of a topic whose number of partitions was reduced."""

from __future__ import annotations

from penstock.cli.output import print_table
from penstock.client import Admin, TopicShrink

WAITS = {
    "sealing": "waits until the leaders of all surplus partitions have sealed them",
    "opening": "waits until the leaders of the partitions have opened them again",
    "retired": "surplus partitions are read and hidden; what is still sent to them is relayed",
}


async def shrink_document(admin: Admin, topic: str) -> dict[str, object]:
    """Return the part of the topic's JSON description about sealed partitions; empty if it has none."""
    shrink = (await admin.shrinks([topic]))[topic]
    if shrink is None:
        return {}
    groups = await admin.draining_groups(shrink) if shrink.state == "draining" else []
    return {
        "shrink": {
            "state": shrink.state,
            "remaining_partitions": shrink.remaining,
            "waits": wait_reason(shrink, bool(groups)),
            "sealed": [sealed._asdict() for sealed in shrink.sealed],
            "draining_groups": [group._asdict() for group in groups],
        }
    }


def wait_reason(shrink: TopicShrink, has_draining_groups: bool) -> str:
    """Return what has to happen before the topic moves on."""
    if shrink.state != "draining":
        return WAITS[shrink.state]
    if has_draining_groups:
        return "waits until each group has committed the drained offsets, or has no committed offsets of the topic"
    if all(not sealed.drained_offset for sealed in shrink.sealed):
        return "nothing is left to read; the surplus partitions are hidden within seconds"
    return "waits until a group has read the sealed partitions, or retention has deleted their messages"


def show_shrink(document: object) -> None:
    """Print the state of the sealed partitions as tables."""
    assert isinstance(document, dict), "the state is a JSON object"
    print(f"fewer partitions: {document['state']}, {document['remaining_partitions']} remain; {document['waits']}")
    rows = [
        (
            str(sealed["partition"]),
            sealed["seal_offset"],
            sealed["drained_offset"],
            str(sealed["relay_target"]),
            "yes" if sealed["is_hidden"] else "no",
        )
        for sealed in document["sealed"]
    ]
    if rows:
        print_table(("sealed", "seal", "drained at", "relayed to", "hidden"), rows)
    groups = [
        (group["group"], str(group["partition"]), group["committed"], group["lag"])
        for group in document["draining_groups"]
    ]
    if groups:
        print_table(("group", "partition", "committed", "lag"), groups)
