"""The console's process. It runs in the clients' network, because the test may not reach the cluster from outside.

Reads requests as JSON lines on standard input and answers each with one line on standard output: {"answer": ...} or
{"error": ...}.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Callable
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

REQUEST_S = 10.0


def post(url: str, body: dict[str, Any]) -> Any:
    """Send a JSON request to etcd's gateway; return the JSON answer."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=REQUEST_S) as answer:
        return json.load(answer)


def create_topic(
    bootstrap: str,
    name: str,
    partitions: int,
    replication: int,
    config: dict[str, str],
    security: dict[str, Any],
) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, **security})
    wanted = NewTopic(name, partitions, replication, config=config)
    for future in admin.create_topics([wanted], request_timeout=REQUEST_S).values():
        future.result(REQUEST_S)


def brokers(bootstrap: str) -> list[int]:
    """Return the broker ids in a client's metadata."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    return sorted(admin.list_topics(timeout=REQUEST_S).brokers)


REQUESTS: dict[str, Callable[..., Any]] = {each.__name__: each for each in (post, create_topic, brokers)}


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"answer": REQUESTS[request.pop("do")](**request)}
        except Exception as error:  # the test decides what the error means
            answer = {"error": repr(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
