"""`penstock status`: a cluster at a glance."""

from __future__ import annotations

from penstock.cli.common import DEFAULT_BOOTSTRAP, Bootstrap, Output, run
from penstock.cli.output import print_json, print_table, size_text
from penstock.cli.root import make_app
from penstock.client import Admin, ClusterInfo, GroupListing, LogDir, TopicInfo

app = make_app()


@app.command()
def status(output: Output = "text", bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Show a cluster at a glance: brokers, topics, partitions without a leader or short of replicas, groups.

    Examples:

    - `penstock status`
    - `penstock status --output json | jq .partitions.offline`
    """
    run(show_status(bootstrap, output == "json"))


async def show_status(bootstrap: str, as_json: bool) -> None:
    async with Admin(bootstrap) as admin:
        cluster = await admin.describe_cluster()
        topics = await admin.list_topics()
        groups = await admin.list_groups()
        directories = await admin.log_dirs()
    found = document(cluster, topics, groups, directories)
    if as_json:
        print_json(found)
        return
    partitions = found["partitions"]
    assert isinstance(partitions, dict), "a status has counts of partitions"
    print(f"cluster {cluster.cluster_id}")
    print_table(
        ("broker", "address", "rack", "controller", "data"),
        [
            (str(b.node_id), f"{b.host}:{b.port}", b.rack, "yes" if b.node_id == cluster.controller_id else "",
             size_text(data_bytes(directories, b.node_id)))
            for b in cluster.brokers
        ],
    )  # fmt: skip
    print(f"topics {len(topics):,}  partitions {partitions['total']:,}  groups {len(groups):,}")
    print(f"partitions without leader {partitions['offline']:,}  short of replicas {partitions['under_replicated']:,}")


def data_bytes(directories: list[LogDir], broker_id: int) -> int:
    return sum(sum(d.partitions.values()) for d in directories if d.broker_id == broker_id)


def document(
    cluster: ClusterInfo, topics: dict[str, TopicInfo], groups: list[GroupListing], directories: list[LogDir]
) -> dict[str, object]:
    partitions = [p for topic in topics.values() for p in topic.partitions.values()]
    states: dict[str, int] = {}
    for group in groups:
        states[group.state] = states.get(group.state, 0) + 1
    return {
        "cluster_id": cluster.cluster_id,
        "controller_id": cluster.controller_id,
        "brokers": [
            {
                "broker_id": b.node_id,
                "host": b.host,
                "port": b.port,
                "rack": b.rack,
                "data_bytes": data_bytes(directories, b.node_id),
            }
            for b in cluster.brokers
        ],
        "topics": len(topics),
        "partitions": {
            "total": len(partitions),
            "offline": sum(p.leader < 0 for p in partitions),
            "under_replicated": sum(len(p.isr) < len(p.replicas) for p in partitions),
        },
        "groups": {"total": len(groups), "by_state": states},
    }
