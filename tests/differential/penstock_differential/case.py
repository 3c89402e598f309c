"""A case: a sequence of requests with its own names, sent to both services and compared one by one."""

from __future__ import annotations

import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from penstock.wire.apis import APIS
from penstock_differential import codec
from penstock_differential.compare import Difference, compare, error_codes
from penstock_differential.coverage import Coverage
from penstock_differential.explain import KnownDifference, find
from penstock_differential.mutate import mutated
from penstock_differential.sides import Answer, Route, Side
from penstock_differential.values import Tree, printable

SETTLE_LIMIT_S = 3.0
CONCURRENT_TRANSACTIONS, CONCURRENT_LIMIT_S = 51, 15.0
"""Error code, and the time limit for its retries: on a loaded machine, writing markers may take this long."""
POLL_S = 0.02
MAX_VERSION = {"InitProducerId": 5}
"""Last versions that Penstock announces, for APIs with a codec for later ones."""
READS = frozenset(
    {
        "ApiVersions", "DescribeAcls", "DescribeClientQuotas", "DescribeCluster", "DescribeConfigs", "DescribeGroups",
        "DescribeLogDirs", "DescribeProducers", "DescribeQuorum", "DescribeTopicPartitions", "DescribeTransactions",
        "DescribeUserScramCredentials", "Fetch", "FindCoordinator", "ListConfigResources", "ListGroups", "ListOffsets",
        "ListPartitionReassignments", "ListTransactions", "Metadata", "OffsetFetch", "OffsetForLeaderEpoch",
        "ConsumerGroupDescribe", "DescribeShareGroupOffsets", "ShareGroupDescribe",
    }
)  # fmt: skip
"""APIs whose requests change nothing: they can be repeated until both sides have caught up."""
PASSING = frozenset({5, 14, 15, 16, 19, 41, 51, 78, 88})
"""Errors after which the same request is retried, as clients do."""
GROUP_APIS = frozenset(
    {"JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup", "OffsetCommit", "OffsetFetch", "OffsetDelete",
     "TxnOffsetCommit", "DescribeGroups", "DeleteGroups", "ConsumerGroupHeartbeat", "ConsumerGroupDescribe",
     "ShareGroupHeartbeat", "ShareGroupDescribe", "DescribeShareGroupOffsets", "AlterShareGroupOffsets",
     "DeleteShareGroupOffsets"}
)  # fmt: skip
TRANSACTION_APIS = frozenset(
    {"InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn", "DescribeTransactions"}
)
CASE_PREFIX = re.compile(r"[de]\d+[xcs]\d+")
"""Prefix of the names that a case creates."""
ELSEWHERE = frozenset({15, 16})
"""Errors of a broker that is not in charge."""
SPREAD = "the request names things of several brokers"
SEVERAL_FAULTS = "several things are wrong with the request"
LEADER_APIS = frozenset(
    {"Produce", "Fetch", "ListOffsets", "DeleteRecords", "OffsetForLeaderEpoch", "DescribeProducers"}
)


class CaseEnded(Exception):
    """A difference after which the states of the sides may differ: later answers are not comparable."""


@dataclass
class Finding:
    """An unexplained difference, with everything needed to repeat it."""

    case: str
    api: str
    version: int
    request: Tree
    differences: list[Difference]

    def as_json(self) -> Tree:
        """Return the finding for the report."""
        return {
            "case": self.case,
            "api": self.api,
            "version": self.version,
            "request": printable(self.request),
            "differences": [str(difference) for difference in self.differences],
        }


@dataclass
class Pending:
    """A request in flight on both sides."""

    api: str
    version: int
    tree: Tree
    route: Route
    channel: str
    answers: list[Callable[[], Answer]]
    is_spread: bool = False
    """Whether several brokers may lead or coordinate the things it names; it is sent to one of them."""


@dataclass
class Record:
    """The data collected in a run: coverage, findings, and how often each known difference occurred."""

    known: Sequence[KnownDifference]
    coverage: Coverage = field(default_factory=Coverage)
    findings: list[Finding] = field(default_factory=list)
    lasting: set[tuple[str, str, str, str]] = field(default_factory=set)
    """Persistent unexplained differences: API, field and values."""
    occurred: dict[int, int] = field(default_factory=dict)
    cases: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    """Numbers of cases, and of cases ended by a difference, by family."""

    explained: dict[int, Counter[str]] = field(default_factory=dict)
    """By known difference: the differences that it explained."""
    trace: TextIO | None = None
    """Destination of each pair as a line of JSON, if any."""


class Case:
    """Sends requests to both sides. Every name that a case creates starts with `prefix`."""

    def __init__(self, label: str, prefix: str, rng: random.Random, sides: tuple[Side, Side], record: Record) -> None:
        self.label, self.prefix, self.rng, self.sides, self.record = label, prefix, rng, sides, record
        self.events: set[str] = set()
        """Events of the case that affect later answers: `after` of known differences."""
        self.features: set[str] = set()
        """Features of the next request that affect its answer: also `after` of known differences."""
        for side in sides:
            side.forget()

    @property
    def is_cluster(self) -> bool:
        """Whether each side has several brokers."""
        return len(self.sides[0].service.addresses) > 1

    def version(self, api: str, first: int = 0, last: int = 1 << 15) -> int:
        """Return a random version of the API that both sides serve."""
        known = APIS[codec.api_key(api)]
        newest = min(last, MAX_VERSION.get(api, known.last))
        return self.rng.randint(min(max(first, known.first), newest), newest)

    def mutate(
        self, api: str, version: int, tree: Tree, keep: Collection[str] = (), odds: float = 0.6, faults: int = 0
    ) -> Tree:
        """Return the request with up to two changed fields. `faults` is the number of errors it had before."""
        keep = {*keep, *(("timeout_ms",) if api != "Produce" or self.is_cluster else ())}
        changes = 0
        while self.rng.random() < odds:
            tree = mutated(api, version, tree, self.rng, keep)
            odds /= 2
            changes += 1
        self.note_faults(changes + faults if changes else 0)
        return tree

    def note_faults(self, faults: int) -> None:
        """Record the number of errors in the next request: if there are several, the reported one is not compared."""
        if faults > 1:
            self.features.add(SEVERAL_FAULTS)

    def ask(
        self,
        api: str,
        tree: Tree,
        version: int | None = None,
        *,
        learn: Mapping[str, str] | None = None,
        route: Route | None = None,
        channel: str = "main",
        retry: bool = True,
    ) -> Tree:
        """Send a request to both sides and compare. Returns Penstock's answer.

        Raises CaseEnded if there is no answer, or if the states of the sides may differ.

        `learn` maps names to paths in the response whose values each side has assigned.
        """
        return self.finish(self.begin(api, tree, version, route=route, channel=channel), learn=learn, retry=retry)

    def begin(
        self, api: str, tree: Tree, version: int | None = None, *, route: Route | None = None, channel: str = "main"
    ) -> Pending:
        """Send a request to both sides without waiting for the answers."""
        version = self.version(api) if version is None else version
        route = route or route_of(api, tree)
        sent = [side.send(api, version, tree, route, channel) for side in self.sides]
        return Pending(api, version, tree, route, channel, sent, self.is_cluster and names_several(tree))

    def finish(self, pending: Pending, *, learn: Mapping[str, str] | None = None, retry: bool = True) -> Tree:
        """Wait for both answers and compare them."""
        answers = [answer() for answer in pending.answers]
        if retry:
            answers = self._settled(pending, answers)
        for name, path in (learn or {}).items():
            for side, answer in zip(self.sides, answers, strict=True):
                side.assigned[name] = value_at(answer.tree, path)
        self._judge(pending, answers)
        if answers[0].tree is None:
            raise CaseEnded
        return answers[0].tree

    def ask_frames(self, api: str, version: int, frame: bytes, what: Tree, channel: str = "malformed") -> None:
        """Send the same bytes to both sides; `what` describes them."""
        sent = [side.send_frame(api, version, frame, Route(), channel) for side in self.sides]
        pending = Pending(api, version, what, Route(), channel, sent)
        self._judge(pending, [answer() for answer in sent])

    def _settled(self, pending: Pending, answers: list[Answer]) -> list[Answer]:
        """Repeat reads until the sides agree, and retry requests that fail with transient errors."""
        started_s = time.monotonic()
        pause_s = POLL_S
        passing = PASSING - ELSEWHERE if pending.is_spread else PASSING
        while time.monotonic() - started_s < limit_s(answers):
            again = [bool(passing & set(error_codes(answer.tree))) for answer in answers]
            if not any(again):
                if pending.api not in READS or not self._is_news(pending, answers):
                    break
                again = [True, True]
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 0.3)
            for index, side in enumerate(self.sides):
                if again[index]:
                    side.forget_routes()
                    answers[index] = side.ask(
                        pending.api, pending.version, pending.tree, pending.route, pending.channel
                    )
        return answers

    def _is_news(self, pending: Pending, answers: list[Answer]) -> bool:
        """Whether a difference is neither explained nor equal to an earlier persistent one."""
        found = self._differences(pending, answers)[1]
        return any(
            (pending.api, one.field, str(one.penstock), str(one.kafka)) not in self.record.lasting for one in found
        )

    def _differences(
        self, pending: Pending, answers: list[Answer]
    ) -> tuple[list[tuple[KnownDifference, Difference]], list[Difference]]:
        found = [one for one in compare(*answers, self.sides) if not self._is_foreign(one)]
        events = {*self.events, *self.features, *((SPREAD,) if pending.is_spread else ())}
        known = [find(self.record.known, pending.api, pending.version, pending.tree, one, events) for one in found]
        causes = [one for one, why in zip(found, known, strict=True) if why and one.field.endswith("error_code")]
        explained = [(why, one) for one, why in zip(found, known, strict=True) if why is not None]
        unexplained = [
            one
            for one, why in zip(found, known, strict=True)
            if why is None and not any(one.follows_from(cause) for cause in causes)
        ]
        return explained, unexplained

    def _is_foreign(self, difference: Difference) -> bool:
        """Whether a difference concerns names of another case, which lists may contain on one side only."""
        named = CASE_PREFIX.findall(difference.element)
        return bool(named) and self.prefix not in named

    def _judge(self, pending: Pending, answers: list[Answer]) -> None:
        codes = [set(error_codes(answer.tree)) for answer in answers]
        self.record.coverage.add(pending.api, pending.version, codes[0], codes[1])
        explained, unexplained = self._differences(pending, answers)
        self.features.clear()
        for known, difference in explained:
            self.record.occurred[id(known)] = self.record.occurred.get(id(known), 0) + 1
            self.record.explained.setdefault(id(known), Counter())[str(difference)] += 1
        if unexplained:
            self.record.lasting |= {signature(pending.api, one) for one in unexplained}
            self.record.findings.append(Finding(self.label, pending.api, pending.version, pending.tree, unexplained))
        if self.record.trace is not None:
            self._write_trace(self.record.trace, pending, answers, explained, unexplained)
        if pending.api not in READS and (unexplained or not all(known.harmless for known, _ in explained)):
            raise CaseEnded

    def _write_trace(
        self,
        trace: TextIO,
        pending: Pending,
        answers: list[Answer],
        explained: list[tuple[KnownDifference, Difference]],
        unexplained: list[Difference],
    ) -> None:
        pair = {
            "case": self.label,
            "api": pending.api,
            "version": pending.version,
            "request": printable(pending.tree),
            "penstock": printable(answers[0].tree),
            "kafka": printable(answers[1].tree),
            "explained": [str(difference) for _, difference in explained],
            "unexplained": [str(difference) for difference in unexplained],
        }
        print(json.dumps(pair, default=str), file=trace, flush=True)


def limit_s(answers: Sequence[Answer]) -> float:
    """Return the time limit for repeating a request after these answers."""
    codes = {code for answer in answers for code in error_codes(answer.tree)}
    return CONCURRENT_LIMIT_S if CONCURRENT_TRANSACTIONS in codes else SETTLE_LIMIT_S


def names_several(tree: Tree) -> bool:
    """Whether a request has an array of more than one element."""
    if isinstance(tree, dict):
        return any(map(names_several, tree.values()))
    return isinstance(tree, list) and (len(tree) > 1 or any(map(names_several, tree)))


def signature(api: str, difference: Difference) -> tuple[str, str, str, str]:
    """Return the key that identifies a difference, regardless of the request."""
    return api, difference.field, str(difference.penstock), str(difference.kafka)


def value_at(tree: Tree, path: str) -> Any:
    """Return the value at a path such as `groups.0.members.0.member_id`; None if it is missing."""
    for part in path.split("."):
        if isinstance(tree, list):
            tree = tree[int(part)] if int(part) < len(tree) else None
        else:
            tree = tree.get(part) if isinstance(tree, dict) else None
    return tree


def route_of(api: str, tree: Tree) -> Route:
    """Return the route that a client uses for a request."""
    try:
        if api in GROUP_APIS:
            name = (
                tree.get("group_id")
                or (tree.get("groups") or tree.get("groups_names") or tree.get("group_ids") or [""])[0]
            )
            return Route("group", str(name["group_id"] if isinstance(name, dict) else name))
        if api in TRANSACTION_APIS:
            name = tree.get("transactional_id") or tree.get("v3_and_below_transactional_id")
            name = name or (tree.get("transactional_ids") or [""])[0]
            if not name and tree.get("transactions"):
                name = tree["transactions"][0]["transactional_id"]
            return Route("transaction", str(name))
        if api in LEADER_APIS:
            topic = (tree.get("topics") or tree.get("topic_data"))[0]
            parts = topic.get("partitions") or topic.get("partition_data") or [0]
            part = parts[0]
            if isinstance(part, dict):
                part = next(part[name] for name in ("partition_index", "partition", "index") if name in part)
            return Route("leader", str(topic.get("name") or topic.get("topic")), int(part))
    except (KeyError, IndexError, TypeError, StopIteration):
        pass
    return Route()
