"""The work queue of docs/guide/queues.md, with the client that the guide uses."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from node_kit import Client

pytestmark = pytest.mark.integration

GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "queues.md"
DEADLINE_S = 60


@pytest.mark.parametrize("example", [1, 2], ids=["confluent-kafka", "penstock"])
def test_the_guides_work_queue_delivers_each_job_once(up, example):
    examples = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    start_at_the_beginning, _, _, dead_letters = examples
    worker = examples[example]
    start_at_the_beginning += dead_letters
    broker = up()
    address = f"127.0.0.1:{broker.port}"
    with Client(broker.port) as client:
        client.metadata("jobs")
        client.produce("jobs", b"a", b"b", b"c")
    code = [text.replace("127.0.0.1:9092", address) for text in (start_at_the_beginning, worker)]
    subprocess.run([sys.executable, "-c", code[0]], check=True, timeout=DEADLINE_S)
    process = subprocess.Popen([sys.executable, "-u", "-c", code[1]], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        with Client(broker.port) as client:
            client.produce("jobs", b"d")
        lines.append(process.stdout.readline())
    finally:
        process.kill()
        process.communicate(timeout=DEADLINE_S)
    assert lines == [f"done: {job} delivery 1\n" for job in "abcd"]
