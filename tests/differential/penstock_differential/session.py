"""The run: starts both services, plays cases until enough pairs were compared, and reports the findings."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import random
import signal
import sys
import tempfile
import time
from enum import Enum
from pathlib import Path

from penstock_differential import expiring, explain, peers
from penstock_differential.authorization import secured
from penstock_differential.authorization.grants import matrix, short_matrix, unprotected_matrix
from penstock_differential.authorization.matrix import FAMILY as AUTHORIZATION
from penstock_differential.authorization.matrix import play_matrix
from penstock_differential.authorization.secured import SecuredSide
from penstock_differential.case import MAX_VERSION, Case, CaseEnded, Record
from penstock_differential.families import FAMILIES, Family, everything
from penstock_differential.passing import play_passing
from penstock_differential.sides import Side

PROGRESS_S = 10.0
MAX_FINDINGS = 400
EXPIRING_CASES = 10
COMPLETE_PAIRS = 10_000
"""Minimum of pairs for reporting known differences that did not occur."""


class Setup(Enum):
    """The services of cases: one broker, three, or one with an authorizer. The value is in the names of the cases."""

    ALONE = "x"
    CLUSTER = "c"
    AUTHORIZER = "s"

    def plays(self, one: Family) -> bool:
        """Return whether cases of a family run on these services."""
        if self is Setup.AUTHORIZER or one.has_authorizer:
            return self is Setup.AUTHORIZER and one.has_authorizer
        return self is Setup.ALONE or one.cluster


SHOWN = {Setup.ALONE: "", Setup.CLUSTER: ", three brokers", Setup.AUTHORIZER: ", with an authorizer"}
"""What a label says about the services."""


SHORT_SEED = 4
SHORT_CASES = {Setup.ALONE: 150, Setup.AUTHORIZER: 25}
"""Numbers of cases of a short run. No other limit ends it, so that it plays the same cases on every machine."""


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.differential.run", description=__doc__)
    parser.add_argument("--pairs", type=int, default=20_000, help="pairs of requests with one broker (default: 20000)")
    parser.add_argument("--cluster-pairs", type=int, default=1500, help="pairs with three brokers (default: 1500)")
    parser.add_argument("--authorizer-pairs", type=int, default=3000, help="pairs about ACLs (default: 3000)")
    parser.add_argument("--seconds", type=float, default=7200, help="most time for either part (default: 7200)")
    parser.add_argument("--expiring", action="store_true", help="play the cases about what expires, as a full run does")
    parser.add_argument("--cases", type=int, help="end after this many cases with one broker (default: no limit)")
    parser.add_argument("--short", action="store_true", help=f"{SHORT_CASES[Setup.ALONE]} cases of a fixed seed")
    parser.add_argument("--seed", type=int, help="repeat a run with this seed (default: a random one)")
    parser.add_argument("--case", type=int, help="play only the case with this number")
    parser.add_argument("--api", action="append", default=[], help="only families about this API; may be repeated")
    parser.add_argument("--family", action="append", default=[], help="only this family; may be repeated")
    parser.add_argument("--open", action="store_true", help="with --case: the matrix where no ACL means allowed")
    parser.add_argument("--strict", action="store_true", help="fail also for known differences that did not occur")
    parser.add_argument("--report", type=Path, help="write findings (JSON) and coverage (Markdown) to this directory")
    parser.add_argument("--trace", type=Path, help="write each request with both responses to this file (JSON lines)")
    parser.add_argument("--penstock", metavar="HOST:PORT", help="a running Penstock, instead of starting one")
    parser.add_argument("--kafka", metavar="HOST:PORT", help="a running Apache Kafka, instead of starting one")
    return parser.parse_args()


def chosen_families(options: argparse.Namespace, setup: Setup) -> list[Family]:
    """Return the families that the command line selects for these services. Raises SystemExit if none has the names."""
    chosen = [
        one
        for one in everything().values()
        if (not options.family or one.name in options.family) and (not options.api or one.apis & set(options.api))
    ]
    if not chosen:
        sys.exit(
            f"no family of cases matches --api {options.api} --family {options.family}; families: {list(FAMILIES)}"
        )
    return [one for one in chosen if setup.plays(one)]


def play(pair: peers.ServicePair, record: Record, options: argparse.Namespace, pairs: int, setup: Setup) -> None:
    """Play cases until `pairs` more pairs were compared."""
    families = chosen_families(options, setup)
    side_type = SecuredSide if setup is Setup.AUTHORIZER else Side
    sides = (side_type("penstock", pair.penstock), side_type("kafka", pair.kafka))
    wanted = record.coverage.total + pairs
    number, shown_s = options.case or 0, time.monotonic()
    started_s = time.monotonic()
    try:
        for side in sides:
            side.warm_up()
        while record.coverage.total < wanted and len(record.findings) < MAX_FINDINGS:
            rng = random.Random(f"{options.seed}:{setup.name}:{number}")
            one = rng.choices(families, [each.weight for each in families])[0]
            label = f"--seed {options.seed} --case {number} ({one.name}{SHOWN[setup]})"
            case = Case(label, f"d{options.seed % 10000}{setup.value}{number}", rng, sides, record)
            play_case(case, one)
            pair.check()
            if time.monotonic() - shown_s > PROGRESS_S:
                shown_s = time.monotonic()
                print(f"{record.coverage.total:,} pairs, {len(record.findings)} unexplained", flush=True)
            number += 1
            is_last = options.case is not None or number == last_case(options, setup)
            if is_last or time.monotonic() - started_s > options.seconds:
                break
    finally:
        for side in sides:
            side.close()


def last_case(options: argparse.Namespace, setup: Setup) -> int | None:
    """Return after how many cases a part ends; None if pairs or seconds end it."""
    if options.short:
        return SHORT_CASES.get(setup)
    cases: int | None = options.cases
    return cases if setup is Setup.ALONE else None


def play_case(case: Case, one: Family) -> None:
    """Play a case of a family, and print what it finds."""
    record = case.record
    found_before = len(record.findings)
    try:
        one.run(case)
    except CaseEnded:
        record.ended[one.name] += 1
    record.cases[one.name] += 1
    for finding in record.findings[found_before:]:
        differences = "; ".join(map(str, finding.differences))[:500]
        print(f"unexplained: {case.label} {finding.api}: {differences}", flush=True)


def play_expiring(pair: peers.ServicePair, record: Record, options: argparse.Namespace) -> None:
    """Play the cases about expiration, on services with short expiration times."""
    sides = (Side("penstock", pair.penstock), Side("kafka", pair.kafka))
    try:
        for side in sides:
            side.warm_up()
        for number in range(EXPIRING_CASES):
            rng = random.Random(f"{options.seed}:expiring:{number}")
            run = expiring.CASES[number % len(expiring.CASES)]
            label = f"--seed {options.seed} --expiring, number {number} ({run.__name__})"
            case = Case(label, f"e{options.seed % 10000}x{number}", rng, sides, record)
            record.cases[run.__name__] += 1
            try:
                run(case)
            except CaseEnded:
                record.ended[run.__name__] += 1
    finally:
        for side in sides:
            side.close()


def play_authorization(record: Record, options: argparse.Namespace, work: Path) -> None:
    """Play the matrix of rights on services with an authorizer: resources without ACLs are closed, then open."""
    modes = (("", short_matrix() if options.short else matrix(), False), (" --open", unprotected_matrix(), True))
    for argument, rows, allows_unprotected in modes[:1] if options.short else modes:
        if options.case is None or allows_unprotected is options.open:
            label = f"--family {AUTHORIZATION}{' --short' if options.short else ''}{argument}"
            with secured.started(work, allows_unprotected=allows_unprotected) as pair:
                play_matrix(pair, record, rows, label, options.case)


def plays_authorization(options: argparse.Namespace) -> bool:
    """Return whether the command line selects the matrix of rights; if nothing else, disable the other parts."""
    if options.family == [AUTHORIZATION]:
        options.pairs = options.cluster_pairs = options.authorizer_pairs = 0
        return True
    return not options.family and not options.api and options.case is None and not options.penstock


def summarise(record: Record, options: argparse.Namespace) -> int:
    """Print findings and known differences that did not occur; return the exit code."""
    groups: dict[tuple[str, str], list[str]] = {}
    for finding in record.findings:
        for difference in finding.differences:
            shown = (
                f"{difference.field}: Penstock {json.dumps(difference.penstock)}, Kafka {json.dumps(difference.kafka)}"
            )
            groups.setdefault((finding.api, shown), []).append(json.dumps(finding.as_json()))
    for (api, shown), where in sorted(groups.items(), key=lambda item: -len(item[1])):
        print(f"UNEXPLAINED {api} {shown} ({len(where)} times), first:\n  {where[0][:1500]}")
    unused = [one for one in record.known if id(one) not in record.occurred]
    complete = not (
        options.short
        or options.cases
        or options.pairs < COMPLETE_PAIRS
        or options.case is not None
        or options.api
        or options.family
    )
    for one in unused if complete else []:
        print(f"did not occur: {one.api} {one.versions_text()} {', '.join(one.fields)}: {one.reason.strip()[:100]}")
    print("cases: " + ", ".join(f"{name} {n} ({record.ended[name]} ended early)" for name, n in record.cases.items()))
    print(
        f"{record.coverage.total:,} pairs with seed {options.seed}: {len(record.findings)} unexplained differences, "
        f"{sum(record.occurred.values())} explained by {len(record.occurred)} of {len(record.known)} known ones"
    )
    if options.report:
        options.report.mkdir(parents=True, exist_ok=True)
        findings = [finding.as_json() for finding in record.findings]
        (options.report / "findings.json").write_text(json.dumps(findings, indent=1))
        explained = [
            {
                "api": one.api,
                "field": one.field,
                "reason": one.reason,
                "differences": dict(record.explained.get(id(one), {})),
            }
            for one in record.known
        ]
        (options.report / "explained.json").write_text(json.dumps(explained, indent=1))
        (options.report / "coverage.md").write_text(record.coverage.report(MAX_VERSION))
    return 1 if record.findings or (unused and complete and options.strict) else 0


def main() -> int:
    """Run as the command line specifies."""
    options = arguments()
    if options.short:
        options.seed = SHORT_SEED if options.seed is None else options.seed
        options.cluster_pairs, options.seconds = 0, math.inf
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1 << 32)
    has_authorization = plays_authorization(options)
    print(f"seed {options.seed}", flush=True)
    record = Record(explain.load(), trace=options.trace.open("w") if options.trace else None)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), tempfile.TemporaryDirectory(prefix="penstock-differential-") as work:
        if options.penstock and options.kafka:
            given = [peers.GivenService(addresses.split(",")) for addresses in (options.penstock, options.kafka)]
            play(peers.ServicePair(*given), record, options, options.pairs, Setup.ALONE)
        else:
            play_started(record, options, Path(work), has_authorization)
    return summarise(record, options)


def play_started(record: Record, options: argparse.Namespace, work: Path, has_authorization: bool) -> None:
    """Play all parts that the command line selects, each on services of its own."""
    if options.pairs and chosen_families(options, Setup.ALONE):
        with peers.started(work) as pair:
            play(pair, record, options, options.pairs, Setup.ALONE)
    is_selective = options.short or options.family or options.api or options.case is not None
    if options.expiring or (options.pairs and not is_selective):
        with peers.started(work, expiring=True) as pair:
            play_expiring(pair, record, options)
    if options.authorizer_pairs and chosen_families(options, Setup.AUTHORIZER):
        with secured.started(work, allows_unprotected=False) as pair:
            play(pair, record, options, options.authorizer_pairs, Setup.AUTHORIZER)
    if has_authorization:
        play_authorization(record, options, work)
    if options.cluster_pairs and chosen_families(options, Setup.CLUSTER):
        with peers.started(work, brokers=3) as pair:
            play(pair, record, options, options.cluster_pairs, Setup.CLUSTER)
            if options.case is None:
                passing_sides = (Side("penstock", pair.penstock), Side("kafka", pair.kafka))
                print("\n".join(play_passing(pair, passing_sides, record.coverage)), flush=True)
