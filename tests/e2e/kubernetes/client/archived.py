"""Reports the messages of a run in a Parquet folder: `archived.py FOLDER RUN`, run in a job's pod.

Prints a JSON object: the number of rows, the number of distinct message numbers, and these as ranges.
"""

from __future__ import annotations

import json
import sys


def main(folder: str, run: str) -> None:
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    values = ds.dataset(folder, format="parquet").to_table(columns=["value"])["value"].cast("string")
    mine = values.filter(pc.starts_with(values, f"{run}:"))
    numbers = sorted(int(text.partition(":")[2]) for text in set(mine.to_pylist()))
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    print(json.dumps({"rows": len(mine), "numbers": len(numbers), "ranges": ranges}))


if __name__ == "__main__":
    main(*sys.argv[1:])
