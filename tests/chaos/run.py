"""Plays the cells: `python -m tests.chaos.run`, with `--short` those that CI plays, or cells by name.

Each cell has its own cluster. Prints the evidence of each fault, and a table at the end; the exit code is 0 only
without findings. The directory of a cell with findings is kept, with the journals and logs of all processes.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1] / "simulation"))
sys.path.insert(2, str(Path(__file__).parents[1] / "crash"))
sys.path.insert(3, str(Path(__file__).parents[1] / "faults"))

from penstock_chaos import report
from penstock_chaos.broker import SOURCE_VARIABLE
from penstock_chaos.cells import CELLS, Cell
from penstock_chaos.etcd_program import NoEtcd, find_etcd, version_of
from penstock_chaos.places import NoNamespaces
from penstock_chaos.planted import PLANTS
from penstock_faults.planting import FaultError, copy_of, plant

SHOWN_FINDINGS = 10
SHORT_SEED = 1


def play(cell: Cell, seed: int) -> report.Row:
    """Play one cell in a new directory; return its row of the table."""
    home = Path(tempfile.mkdtemp(prefix=f"penstock-chaos-{cell.name}-"))
    print(f"{cell.name}: {cell.says} (seed {seed})", flush=True)
    began_s = time.monotonic()
    setup = cell.with_network, cell.small_disk, cell.is_secured, cell.with_etcd_links
    world = cell.world(home, random.Random(seed), *setup)
    try:
        outcome = world.play(cell.fault)
    finally:
        world.clean_up()
    took_s = time.monotonic() - began_s
    for finding in outcome.findings[:SHOWN_FINDINGS]:
        print(f"    FOUND {finding}")
    if outcome.findings:
        again = f"python -m tests.chaos.run {cell.name} --seed {seed}"
        print(f"    {len(outcome.findings)} findings; all logs are in {home}; again: {again}")
    else:
        shutil.rmtree(home, ignore_errors=True)
    print(
        f"    {'FAILED' if outcome.findings else 'passed'} in {took_s:.0f} s: {outcome.acknowledged} writes,"
        f" {outcome.commits} commits and {outcome.transactions} transactions acknowledged",
        flush=True,
    )
    return report.row_of(cell.name, seed, outcome)


def chosen(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> list[Cell]:
    by_name = {cell.name: cell for cell in CELLS}
    unknown = [name for name in arguments.cell if name not in by_name]
    if unknown:
        parser.error(f"there is no cell {unknown[0]!r}; there are {', '.join(by_name)}")
    if arguments.cell:
        return [by_name[name] for name in arguments.cell]
    return [cell for cell in CELLS if cell.short or not arguments.short]


def catch(name: str, seed: int) -> int:
    """Plant a fault in a copy of the broker; exit code 0 if each cell that must detect it does."""
    fault = next(each for each in PLANTS if each.name == name)
    print(f"{fault.name}: {fault.says}", flush=True)
    with copy_of(fault.package) as copy:
        plant(fault, copy)
        os.environ[SOURCE_VARIABLE] = str(copy.parent)
        rows = [play(cell, seed) for cell in CELLS if cell.name in fault.caught_by]
    unnoticed = [row.cell for row in rows if not row.findings]
    print(f"NOT NOTICED by {', '.join(unnoticed)}" if unnoticed else f"noticed by {', '.join(fault.caught_by)}")
    return 1 if unnoticed else 0


def end_in_order(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.run", description=__doc__)
    parser.add_argument("cell", nargs="*", help="play these only")
    parser.add_argument("--short", action="store_true", help="the short set")
    parser.add_argument("--list", action="store_true", help="name the cells")
    parser.add_argument("--seed", type=int, help="choice of what the faults hit (default: random; fixed with --short)")
    parser.add_argument("--write", action="store_true", help="write outcomes into docs/reference/reliability.md")
    parser.add_argument("--plant", choices=[fault.name for fault in PLANTS], help="plant this fault: it must be found")
    arguments = parser.parse_args()
    cells = chosen(arguments, parser)
    if arguments.list:
        print("\n".join(f"{cell.name:20} {cell.says}{' (short set)' if cell.short else ''}" for cell in cells))
        return 0
    signal.signal(signal.SIGTERM, end_in_order)
    seed = arguments.seed
    if seed is None:
        seed = SHORT_SEED if arguments.short else random.SystemRandom().randrange(1 << 32)
    began_s = time.monotonic()
    try:
        program = find_etcd()
        print(f"etcd {version_of(program)}: {program}", flush=True)
        if arguments.plant:
            return catch(arguments.plant, seed)
        rows = [play(cell, seed) for cell in cells]
    except (NoEtcd, NoNamespaces, FaultError) as missing:
        print(missing, file=sys.stderr)
        return 2
    print(f"\n{report.table({row.cell: row for row in rows})}\n\n{time.monotonic() - began_s:.0f} s")
    if arguments.write:
        report.write(rows)
    return 1 if any(row.findings for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
