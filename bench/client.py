"""The client process: read one spec as JSON from standard input, run it, write the metrics as JSON.

The harness starts one process per timed section with `python -m bench.client`, so that every section starts with a new
client that is pinned to the client's core.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from bench.loads import specs

CHECKOUT = Path(__file__).resolve().parents[1]
GRACE_S = 60.0


class ClientFailed(Exception):
    """Error of a client process, with its message."""


def run(spec: specs.AnySpec) -> specs.Metrics:
    """Run `spec` in a separate process and return its metrics."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "bench.client"],
            input=msgspec.json.encode(spec),
            capture_output=True,
            cwd=CHECKOUT,
            timeout=2 * spec.limit_s + GRACE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        raise ClientFailed(f"the client did not end in {expired.timeout:.0f} s") from None
    if done.returncode:
        errors = done.stderr.decode(errors="replace").strip().splitlines()
        raise ClientFailed("\n".join(errors[-15:]) or f"exit code {done.returncode}")
    return msgspec.json.decode(done.stdout, type=dict[str, float])


@contextmanager
def beside(spec: specs.AnySpec) -> Iterator[subprocess.Popen[bytes]]:
    """Run `spec` in a separate process until the block ends. Raises ClientFailed if the process ended before."""
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as request:
        request.write(msgspec.json.encode(spec))
        request.seek(0)
        command = [sys.executable, "-m", "bench.client"]
        with subprocess.Popen(
            command, stdin=request, stdout=subprocess.DEVNULL, stderr=errors, cwd=CHECKOUT
        ) as process:
            try:
                yield process
                if process.poll() is not None:
                    errors.seek(0)
                    raise ClientFailed(errors.read().decode(errors="replace") or "the client ended too early")
            finally:
                process.kill()


def _dispatch(spec: specs.AnySpec) -> specs.Metrics:
    """Import only the modules that the load needs: raw loads run without librdkafka's threads."""
    if isinstance(spec, specs.Produce):
        from bench.loads import produce

        return produce.run(spec)
    if isinstance(spec, specs.Consume):
        from bench.loads import consume

        return consume.run(spec)
    if isinstance(spec, specs.OneByOne):
        from bench.loads import one_by_one

        return one_by_one.run(spec)
    if isinstance(spec, specs.Commits):
        from bench.loads import commits

        return commits.run(spec)
    if isinstance(spec, specs.Surge):
        from bench.loads import surge

        return surge.run(spec)
    if isinstance(spec, specs.Handshakes):
        from bench.loads import handshakes

        return handshakes.run(spec)
    if isinstance(spec, specs.Flood):
        from bench.loads import flood

        return flood.run(spec)
    if isinstance(spec, specs.Share):
        from bench.loads import share

        return share.run(spec)
    if isinstance(spec, specs.Queue):
        from bench.loads import queue

        return queue.run(spec)
    if isinstance(spec, specs.Rebalance):
        from bench.loads import rebalance

        return rebalance.run(spec)
    if isinstance(spec, specs.Delayed):
        from bench.loads import delayed

        return delayed.run(spec)
    if isinstance(spec, specs.Mixed):
        from bench.loads import mixed

        return mixed.run(spec)
    if isinstance(spec, specs.Failover):
        from bench.loads import failover

        return failover.run(spec)
    from bench.loads import paced

    return paced.run(spec)


def main() -> None:
    spec = msgspec.json.decode(sys.stdin.buffer.read(), type=specs.AnySpec)
    os.sched_setaffinity(0, {spec.core})
    sys.stdout.buffer.write(msgspec.json.encode(_dispatch(spec)))


if __name__ == "__main__":
    main()
