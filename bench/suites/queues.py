"""Work queues beside RabbitMQ, NATS JetStream and Kafka's share groups: publishing, consuming, and the time between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from bench import admin
from bench.loads import specs
from bench.peers.nats import Nats
from bench.peers.queue_cluster import PeerUnavailable, QueueContender
from bench.peers.rabbitmq import RabbitMq
from bench.peers.service import Contender, Service
from bench.requirements import QUEUE_SIZES, SHARE_LATENCY_CASES, SHARE_RATE_PER_S, WORST_CASE, share_cases, size_name
from bench.session import Lane, Session
from bench.suites import work
from bench.suites.share import LATENCY_S, SECTION_S, share_spec, volume_factor

ROUNDS = 5
LATENCY_BYTES = 1024
WARM_UP_S = 10.0
FILL_S = 4.0
MESSAGES = 200_000
UNACKNOWLEDGED = 1000
"""Messages that all members together hold without acknowledgement, where the protocol has a limit."""
ACKNOWLEDGEMENTS_IN_FLIGHT = 100
"""Requests of a member of a share group that acknowledge one record each; AMQP and NATS do not wait at all."""
WORST_SIZE_BYTES, WORST_MEMBERS = 100, 64


def run(session: Session) -> None:
    """Measure one broker or node of each."""
    contenders = [session.subject, session.kafka, *_queue_servers(session, 1)]
    _run(session, "queues", contenders, work.PARTITIONS)


def on_clusters(session: Session) -> None:
    """Measure three brokers or nodes of each, with three replicas. A topic has one partition, as a queue has."""
    contenders = [session.subject_cluster, session.kafka_cluster, *_queue_servers(session, 3)]
    _run(session, "cluster-queues", contenders, 1)


def _queue_servers(session: Session, nodes: int) -> list[Contender]:
    """Return the queue servers that are installed; print how to install the others."""
    makers: Sequence[Callable[[], QueueContender]] = (
        lambda: RabbitMq(nodes),
        lambda: Nats(nodes),
        lambda: Nats(nodes, syncs_always=False),
    )
    found: list[Contender] = []
    for make in makers:
        try:
            found.append(make())
        except PeerUnavailable as error:
            session.console.print(f"  omitted: {error}", style="yellow", markup=False)
    return found


def _run(session: Session, suite: str, chosen: Sequence[Contender | None], partitions: int) -> None:
    contenders = [contender for contender in chosen if contender is not None]
    rounds = session.options.rounds_of(ROUNDS)
    versions = {contender.label: contender.version() for contender in contenders}
    session.open_suite_of(suite, rounds, versions, {"partitions": str(partitions)})
    with session.brokers(*contenders) as brokers:
        cases = _Cases(session, brokers, rounds, partitions)
        for size in QUEUE_SIZES:
            cases.publish(size)
            cases.consume(size)
        cases.worst()
        for case, members in SHARE_LATENCY_CASES.items():
            cases.latency(case, members)


class _Cases:
    """The cases of a suite on running brokers."""

    def __init__(self, session: Session, brokers: Sequence[Service], rounds: int, partitions: int) -> None:
        self.session, self.rounds, self.partitions = session, rounds, partitions
        topics = [each for each in brokers if not isinstance(each.contender, QueueContender)]
        queues = [each for each in brokers if isinstance(each.contender, QueueContender)]
        kafkas = [each for each in topics if each.contender.label == "kafka"]
        unflushed = [
            Lane(f"{lane.name} unflushed", lane.broker, lane.topic_settings)
            for lane in session.rivals(kafkas, durable=False)
        ]
        queue_lanes = session.rivals(queues, durable=True)
        self.durable = session.rivals(topics, durable=True) + unflushed + queue_lanes
        """Lanes in which flushing matters: publishing and the time to the delivery."""
        self.consuming = session.rivals(topics, durable=False) + queue_lanes
        """Lanes of consumers. Filling does not flush; each server keeps acknowledgements as it does by default."""

    def publish(self, size: int) -> None:
        """Publish single messages with confirms, 1,000 of them unconfirmed; in Kafka's protocol in batches of 100."""

        def spec(lane: Lane, topic: str) -> specs.AnySpec:
            return self.queue_spec(lane, topic, size, members=0)

        self.run(f"publish {size_name(size)}", self.durable, spec)

    def consume(self, size: int) -> None:
        for case, _, members, is_single in share_cases([size]):
            self.consume_case(case, size, members, one_by_one=is_single)

    def worst(self) -> None:
        """Run what Penstock's design does least well: many members, small messages, single acknowledgements, and every
        second message released once, so that neighbours differ in state."""
        self.consume_case(WORST_CASE, WORST_SIZE_BYTES, WORST_MEMBERS, one_by_one=True, alternating=True)

    def consume_case(self, case: str, size: int, members: int, *, one_by_one: bool, alternating: bool = False) -> None:
        def spec(lane: Lane, topic: str) -> specs.AnySpec:
            if isinstance(lane.broker.contender, QueueContender):
                return self.queue_spec(
                    lane, topic, size, members=members, one_by_one=one_by_one, alternating=alternating
                )
            return self.share_spec(lane, topic, size, members, one_by_one=one_by_one, alternating=alternating)

        self.run(case, self.consuming, spec, fill_bytes=size)

    def latency(self, case: str, members: int) -> None:
        def spec(lane: Lane, topic: str) -> specs.AnySpec:
            if isinstance(lane.broker.contender, QueueContender):
                return self.queue_spec(
                    lane, topic, LATENCY_BYTES, members=members, rate_per_s=SHARE_RATE_PER_S, seconds=LATENCY_S
                )
            return self.share_spec(lane, topic, LATENCY_BYTES, members, rate_per_s=SHARE_RATE_PER_S, seconds=LATENCY_S)

        self.run(case, self.durable, spec)

    def run(
        self,
        case: str,
        lanes: list[Lane],
        spec: Callable[[Lane, str], specs.AnySpec],
        fill_bytes: int = 0,
    ) -> None:
        """Run a case with a topic for each lane that has topics, filled with messages of `fill_bytes` if not 0."""
        with ExitStack() as stack:
            topics: dict[str, str] = {}
            for lane in lanes:
                if not isinstance(lane.broker.contender, QueueContender):
                    topics[lane.name] = stack.enter_context(self.session.topic(lane, self.partitions))
                    if fill_bytes:
                        self.fill(lane, topics[lane.name], fill_bytes)
            self.session.run_rounds(
                case, lanes, self.rounds, lambda lane: spec(lane, topics.get(lane.name, "")), WARM_UP_S
            )

    def fill(self, lane: Lane, topic: str, size: int) -> None:
        messages = self.session.options.messages(size, volume_factor(size))
        fill = work.produce(self.session, lane, topic, size, 1, messages, small=True)
        self.session.measure(lane, fill, [lane.broker])

    def messages(self) -> int:
        return MESSAGES // 20 if self.session.options.quick else MESSAGES

    def share_spec(
        self,
        lane: Lane,
        topic: str,
        size: int,
        members: int,
        *,
        one_by_one: bool = False,
        alternating: bool = False,
        rate_per_s: int = 0,
        seconds: float = SECTION_S,
    ) -> specs.Share:
        return share_spec(
            self.session,
            lane,
            topic,
            size,
            members,
            one_by_one=one_by_one,
            alternating=alternating,
            rate_per_s=rate_per_s,
            seconds=seconds,
            in_flight=ACKNOWLEDGEMENTS_IN_FLIGHT if one_by_one else 1,
            partitions=self.partitions,
            address=self.address(lane, topic),
        )

    def address(self, lane: Lane, topic: str) -> str:
        """Return the broker that leads the topic's partitions."""
        addresses = lane.broker.addresses
        return addresses[0] if len(addresses) == 1 else admin.leader_address(addresses, topic, 0)

    def queue_spec(
        self,
        lane: Lane,
        topic: str,
        size: int,
        *,
        members: int,
        one_by_one: bool = False,
        alternating: bool = False,
        rate_per_s: int = 0,
        seconds: float = SECTION_S,
    ) -> specs.Queue:
        contender, options = lane.broker.contender, self.session.options
        is_topic = not isinstance(contender, QueueContender)
        return specs.Queue(
            address=self.address(lane, topic) if is_topic else lane.broker.address,
            topic=topic,
            broker_pids=lane.broker.pids,
            core=self.session.cores.client,
            protocol=contender.protocol if isinstance(contender, QueueContender) else "kafka",
            size_bytes=size,
            messages=self.messages(),
            members=members,
            seconds=options.seconds(seconds),
            one_by_one=one_by_one,
            alternating=alternating,
            rate_per_s=rate_per_s,
            prefetch=UNACKNOWLEDGED // max(members, 1),
            fill_s=options.seconds(FILL_S),
            partitions=self.partitions,
            replicas=contender.replicas,
        )
