"""Runs simulated worlds: `python -m tests.simulation.run --seeds 1000`, or replays seeds by number.

Prints the seeds per minute, and for each finding the command that reproduces it. A seed counts if it contains at least
1,000 acknowledged operations and 3 faults. Exit code 0 only without findings.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from penstock_simulation.cluster import ALL_FEATURES
from penstock_simulation.cluster_bugs import CLUSTER_BUGS
from penstock_simulation.planted import BUGS, Bug, FaultError, changed_text, planted
from penstock_simulation.scenario import Verdict
from penstock_simulation.worlds import BROKER, CLUSTER, WORLDS, run_seed

HASH_SEED = "0"
"""Hash seed, which determines the iteration order of sets of strings."""
SEEDS_FILE = Path(__file__).with_name("seeds.txt")
HANG_S = 300
PLANT_SEEDS = 200
MOST_SHOWN = 20
FIRST_SEED = 1


class Hangs(Exception):
    """A seed exceeded the time limit."""


def bugs(world: str) -> dict[str, Bug]:
    return CLUSTER_BUGS if world == CLUSTER else BUGS


def kept_seeds(world: str) -> list[int]:
    """Return the seeds that once had findings in a world of that kind."""
    lines = SEEDS_FILE.read_text().splitlines() if SEEDS_FILE.exists() else []
    parts = [line.split("#")[0].split() for line in lines]
    return [int(seed) for kind, seed in filter(None, parts) if kind == world]


def one(seed: int, arguments: argparse.Namespace, trace: bool = False, verbose: bool = False) -> Verdict:
    """Run a seed in a worker process."""
    only, plant, weights = arguments.only, arguments.plant, WORLDS[arguments.world]
    kinds = None if only is None else {kind: weights.get(kind, 1) for kind in only.split(",")}
    features = None if arguments.features is None else frozenset(filter(None, arguments.features.split(",")))

    def alarm(number: int, frame: FrameType | None) -> None:
        raise Hangs(f"seed {seed} has run for {HANG_S} s")

    signal.signal(signal.SIGALRM, alarm)
    signal.alarm(HANG_S)
    try:
        verdict = run_seed(
            seed,
            arguments.world,
            keep_trace=trace,
            kinds=kinds,
            features=features,
            verbose=verbose,
            plant=partial(planted, bugs(arguments.world)[plant]) if plant is not None else None,
        )
    finally:
        signal.alarm(0)
    verdict.history = type(verdict.history)()  # the history is too large to send to another process
    return verdict


def check_bugs() -> int:
    """Print each bug whose text no longer fits the source. Returns the exit code: 1 if there are any."""
    stale = 0
    for bug in CLUSTER_BUGS.values():
        for file in dict.fromkeys(edit.file for edit in bug.edits):
            try:
                changed_text(bug, file)
            except FaultError as e:
                stale += 1
                print(e)
    return 1 if stale else 0


def several(seeds: Iterable[int], arguments: argparse.Namespace) -> Iterator[Verdict]:
    work: Any = partial(one, arguments=arguments)
    if arguments.workers == 1:
        yield from map(work, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(arguments.workers) as pool:
        yield from pool.imap(work, seeds)  # in order, so that the first seed with findings is the lowest


def command(seed: int, arguments: argparse.Namespace) -> str:
    plant = f" --plant {arguments.plant}" if arguments.plant is not None else ""
    only = f" --only {arguments.only}" if arguments.only is not None else ""
    features = f" --features {arguments.features!r}" if arguments.features is not None else ""
    world = f" --world {arguments.world}" if arguments.world != CLUSTER else ""
    return f"python -m tests.simulation.run {seed}{world}{plant}{only}{features}"


def simulate(arguments: argparse.Namespace) -> int:
    first = random.SystemRandom().randrange(1 << 48) if arguments.first is None else arguments.first
    kept = kept_seeds(arguments.world)
    seeds = [*kept, *range(first, first + arguments.seeds)]
    print(f"{len(seeds)} seeds, the fresh ones from {first} on", flush=True)
    began = time.monotonic()
    counted = operations = 0
    failed: list[Verdict] = []
    kinds: Counter[str] = Counter()
    for done, verdict in enumerate(several(seeds, arguments), 1):
        counted += verdict.counts
        operations += verdict.operations
        kinds.update(verdict.faults)
        if verdict.findings:
            failed.append(verdict)
            print(f"seed {verdict.seed}: {verdict.findings[0]}", flush=True)
        if done % 50 == 0 or done == len(seeds):
            rate = 60 * done / (time.monotonic() - began)
            print(f"{done} seeds, {counted} count, {rate:.0f} seeds a minute, {len(failed)} with findings", flush=True)
    print(f"{operations} acknowledged operations; faults: " + ", ".join(f"{k} {n}" for k, n in sorted(kinds.items())))
    if failed:
        print(f"replay the first with findings: {command(failed[0].seed, arguments)}")
    return 1 if failed else 0


def replay(arguments: argparse.Namespace) -> int:
    """Run each seed twice; both traces must be identical."""
    worst = 0
    for seed in arguments.seed:
        verdict = one(seed, arguments, verbose=arguments.verbose, trace=arguments.trace)
        again = one(seed, arguments) if not arguments.once else verdict
        print(
            f"seed {seed}: {verdict.operations} operations, {verdict.virtual_s:.1f} virtual s,"
            f" {verdict.cpu_s:.2f} s of CPU, faults {dict(verdict.faults)}, trace {verdict.digest}"
        )
        for line in verdict.trace or ():
            print(line)
        for finding in verdict.findings[:MOST_SHOWN]:
            print(f"  {finding}")
        if again.digest != verdict.digest:
            print(f"  NOT DETERMINISTIC: the second run has trace {again.digest}")
            worst = 2
        worst = max(worst, 1 if verdict.findings else 0)
    return worst


def catch(arguments: argparse.Namespace) -> int:
    """Find the first seed that detects a planted bug."""
    began = time.monotonic()
    first = FIRST_SEED if arguments.first is None else arguments.first
    for number, verdict in enumerate(several(range(first, first + arguments.most), arguments)):
        if verdict.findings:
            took_s = time.monotonic() - began
            print(f"{arguments.plant} caught by seed {verdict.seed}, after {number + 1} seeds and {took_s:.0f} s:")
            print(f"  {verdict.findings[0]}\n  {command(verdict.seed, arguments)}")
            return 0
    print(f"{arguments.plant} NOT CAUGHT by {arguments.most} seeds")
    return 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.run", description=__doc__)
    parser.add_argument("seed", nargs="*", type=int, help="replay these, each twice")
    parser.add_argument("--seeds", type=int, default=100, help="how many fresh ones (default 100)")
    parser.add_argument("--first", type=int, help="the first seed behind the kept ones (default: a random one)")
    parser.add_argument("--world", choices=[CLUSTER, BROKER], default=CLUSTER, help="what is simulated")
    parser.add_argument(
        "--features",
        metavar="NAME,...",
        help=f"the workloads beside the plain one: of {', '.join(sorted(ALL_FEATURES))}",
    )
    parser.add_argument("--once", action="store_true", help="replay only once")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--plant", choices=sorted({*BUGS, *CLUSTER_BUGS}), help="plant this bug, and look for a seed that catches it"
    )
    parser.add_argument("--check", action="store_true", help="check only that every bug can be planted (fast)")
    parser.add_argument("--most", type=int, default=PLANT_SEEDS, help="how many seeds a planted bug has to show in")
    parser.add_argument("--only", metavar="KIND,...", help="faults of these kinds alone")
    parser.add_argument("-v", "--verbose", action="store_true", help="with the broker's logs, in virtual time")
    parser.add_argument("--trace", action="store_true", help="print every event")
    arguments = parser.parse_args()
    if arguments.check:
        return check_bugs()
    if arguments.seed:
        return replay(arguments)
    return catch(arguments) if arguments.plant else simulate(arguments)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        os.environ["PYTHONHASHSEED"] = HASH_SEED
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation.run", *sys.argv[1:]])
    sys.exit(main())
