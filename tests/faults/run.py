"""Replays planted faults: `python -m tests.faults.run [NAME...]`, all without names; `--list` and `--table` show them.

Each is planted in a copy of the broker's source. The tests named for it must fail against the copy, and pass without
the fault. The checkout is not modified. Exit code 0 only if every fault was detected.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from penstock_faults.catalogue import FAULTS, table
from penstock_faults.planting import Fault, FaultError, check_noticed, check_sound, mutated


def check_fits(faults: Sequence[Fault]) -> int:
    """Print each fault whose text no longer fits the source. Returns the exit code: 1 if there are any."""
    stale = 0
    for fault in faults:
        try:
            mutated(fault)
        except FaultError as e:
            stale += 1
            print(e)
    return 1 if stale else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.run", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="faults to replay; all of them if none is named")
    parser.add_argument("--list", action="store_true", help="show the names and what the broker does wrong")
    parser.add_argument("--check", action="store_true", help="check only that every fault fits the source (fast)")
    parser.add_argument("--table", action="store_true", help="print the table of docs/reference/faults.md")
    arguments = parser.parse_args()
    known = {fault.name: fault for fault in FAULTS}
    unknown = [name for name in arguments.names if name not in known]
    if unknown:
        parser.error(f"no fault is called {unknown[0]}; there are: {', '.join(known)}")
    if arguments.table:
        print(table(), end="")
        return 0
    chosen = [known[name] for name in arguments.names] or list(FAULTS)
    if arguments.list:
        print("\n".join(f"{fault.name}: {fault.says}" for fault in chosen))
        return 0
    if arguments.check:
        return check_fits(chosen)
    unnoticed = 0
    try:
        check_sound(chosen)
    except FaultError as e:
        print(e)
        return 1
    for fault in chosen:
        try:
            print(f"noticed    {fault.name}\n{check_noticed(fault)}", flush=True)
        except FaultError as e:
            unnoticed += 1
            print(f"UNNOTICED  {e}", flush=True)
    print(f"{len(chosen) - unnoticed} of {len(chosen)} faults were noticed")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
