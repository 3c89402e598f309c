"""The options of kafka-topics.sh that librdkafka's tests use: creates, grows or deletes a topic."""

from __future__ import annotations

import argparse

from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

LIMIT_S = 30


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--bootstrap-server", required=True)
    for action in ("--create", "--alter", "--delete"):
        parser.add_argument(action, action="store_true")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, default=-1)
    parser.add_argument("--replication-factor", type=int, default=-1)
    parser.add_argument("--config", action="append", default=[], metavar="NAME=VALUE")
    chosen = parser.parse_args()
    admin = AdminClient({"bootstrap.servers": chosen.bootstrap_server})
    if chosen.create:
        config = dict(setting.split("=", 1) for setting in chosen.config)
        topic = NewTopic(chosen.topic, chosen.partitions, chosen.replication_factor, config=config)
        futures = admin.create_topics([topic])
    elif chosen.alter:
        futures = admin.create_partitions([NewPartitions(chosen.topic, chosen.partitions)])
    else:
        futures = admin.delete_topics([chosen.topic])
    futures[chosen.topic].result(LIMIT_S)


if __name__ == "__main__":
    main()
