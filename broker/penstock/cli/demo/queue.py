"""`penstock demo queue`: three workers of a share group take jobs. One job is retried, one becomes a dead letter."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

from penstock.cli.common import CommandError
from penstock.cli.demo.processes import DemoBroker
from penstock.cli.demo.scenario import MEMBERS, report
from penstock.cli.output import print_table
from penstock.client import Admin, AlterConfig, Consumer, NewTopic, Producer, ShareConsumer, ShareRecord

TOPIC, GROUP, DEAD_LETTERS = "jobs", "workers", "dlq.workers"
GROUP_SETTINGS = {"share.auto.offset.reset": "earliest", "errors.deadletterqueue.topic.name": DEAD_LETTERS}
JOBS = 300
PARTITIONS = 1
"""Fewer than workers: the members of a share group share the records of a partition."""
JOB_S = 0.005
FAILING_JOB, BAD_JOB = 7, 13
TIMEOUT_S = 120.0
BACKLOG_ATTEMPTS = 300


class QueueDemo:
    """The scenario. `deliveries` counts those of each job, `done` has the worker that has done a job."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.deliveries: Counter[int] = Counter()
        self.done: dict[int, str] = {}
        self.rejected: list[int] = []
        self.letters: list[int] = []
        self.backlog = -1
        self.jobs_per_s = 0.0

    async def run(self) -> None:
        """Produce the jobs, and let the workers do them. Raises `CommandError` after `TIMEOUT_S`."""
        async with Admin(self.bootstrap) as admin:
            may_write_letters = {"errors.deadletterqueue.group.enable": "true"}
            await admin.create_topics(
                [NewTopic(TOPIC, PARTITIONS), NewTopic(DEAD_LETTERS, 1, configs=may_write_letters)]
            )
            await admin.alter_group_configs({GROUP: [AlterConfig(*each) for each in GROUP_SETTINGS.items()]})
            await self.produce()
            report(f"{len(MEMBERS)} workers share the records of {PARTITIONS} partition")
            loop = asyncio.get_running_loop()
            started_s = loop.time()
            try:
                async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as tasks:
                    for name in MEMBERS:
                        tasks.create_task(self.work(name))
                    tasks.create_task(self.read_letter())
            except TimeoutError:
                raise CommandError(f"the workers did not finish within {TIMEOUT_S:.0f} s") from None
            self.jobs_per_s = JOBS / (loop.time() - started_s)
            self.backlog = await self.last_backlog(admin)

    async def produce(self) -> None:
        """Produce the jobs."""
        async with Producer(self.bootstrap) as producer:
            for number in range(JOBS):
                await producer.send(TOPIC, f"{number}")
            await producer.flush()
        report(f"{JOBS} jobs wait in topic {TOPIC}")

    async def last_backlog(self, admin: Admin) -> int:
        """Return how many jobs are not done, after a wait for the broker to archive the one with a dead letter."""
        for _ in range(BACKLOG_ATTEMPTS):
            found = sum(offset.lag or 0 for offset in (await admin.share_offsets(GROUP)).values())
            if not found:
                break
            await asyncio.sleep(0.1)
        return found

    async def read_letter(self) -> None:
        """Read the dead letter of the job that was rejected."""
        async with Consumer(self.bootstrap, offset_reset="earliest") as consumer:
            consumer.assign([(DEAD_LETTERS, 0)])
            letter = await consumer.getone()
        headers = {name: (value or b"").decode() for name, value in letter.headers}
        self.letters.append(int(letter.value or b""))
        place = f"offset {headers['__dlq.errors.offset']} of topic {headers['__dlq.errors.topic']}"
        report(f"job {self.letters[-1]} is in topic {DEAD_LETTERS}, with its place: {place}")

    async def work(self, name: str) -> None:
        """Take jobs, a few at a time, until all are done."""
        async with ShareConsumer(
            self.bootstrap,
            group_id=GROUP,
            acknowledgement_mode="explicit",
            acquire_mode="record_limit",
            max_records=5,
            fetch_max_wait_ms=100,
        ) as consumer:
            consumer.subscribe([TOPIC])
            while len(self.done) + len(self.rejected) < JOBS:
                for job in await consumer.getmany(timeout_ms=100):
                    await self.process(name, consumer, job)
            await consumer.commit()

    async def process(self, name: str, consumer: ShareConsumer, job: ShareRecord) -> None:
        """Do one job: it succeeds, fails for now, or can never succeed."""
        number = int(job.value or b"")
        self.deliveries[number] += 1
        await asyncio.sleep(JOB_S)
        if number == BAD_JOB:
            report(f"job {number} cannot be done: worker {name} rejects it")
            consumer.reject(job)
            self.rejected.append(number)
        elif number == FAILING_JOB and job.delivery_count == 1:
            report(f"job {number} fails at worker {name}, who releases it")
            consumer.release(job)
        else:
            if job.delivery_count > 1:
                report(f"job {number} succeeds at worker {name}, delivery {job.delivery_count}")
            consumer.accept(job)
            self.done[number] = name

    def checks(self) -> list[tuple[str, bool, str]]:
        """Return what must hold, whether it does, and what was found."""
        repeated = sorted(number for number, count in self.deliveries.items() if count > 1)
        expected = sorted(set(range(JOBS)) - {BAD_JOB})
        return [
            ("each job is done or rejected", sorted(self.done) == expected, f"{len(self.done)} done"),
            ("only the job that failed was delivered again", repeated == [FAILING_JOB], f"jobs {repeated}"),
            ("one job was rejected", self.rejected == [BAD_JOB], f"jobs {self.rejected}"),
            ("the rejected job is a dead letter", self.letters == [BAD_JOB], f"jobs {self.letters}"),
            ("the queue is empty", self.backlog == 0, f"{self.backlog} left"),
        ]


async def run_queue_demo() -> None:
    """Start a broker, run the scenario, print its results, and remove everything. Raises `CommandError` on failure."""
    async with AsyncExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        broker = await DemoBroker.start(directory)
        stack.push_async_callback(broker.close)
        print(f"broker {broker.address}, data in {directory}", flush=True)
        demo = QueueDemo(broker.address)
        await demo.run()
    workers = Counter(demo.done.values())
    print_table(("worker", "jobs done"), [(name, workers[name]) for name in MEMBERS], title="Workers")
    print(f"{demo.jobs_per_s:,.0f} jobs/s, each acknowledged on its own")
    checks = demo.checks()
    print_table(
        ("check", "", "found"), [(what, "ok" if holds else "FAILED", found) for what, holds, found in checks],
        title="Checks",
    )  # fmt: skip
    if not all(holds for _, holds, _ in checks):
        raise CommandError("the demo failed; see the checks above")
