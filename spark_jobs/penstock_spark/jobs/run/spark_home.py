"""A SPARK_HOME without Spark's zip archive of pyspark, which halves the start time of Spark's Python processes.

Spark makes them search `$SPARK_HOME/python/lib/pyspark.zip` first. That archive has no bytecode, so each of the five
processes behind a query's first batch compiles pyspark, although the same package is installed and compiled. This
module creates a folder with links to everything else that Spark needs from SPARK_HOME. The image is built the same way.

Called by `session`, and by user code with its own session.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from penstock_spark.jobs.run import cache

LINKED = ("bin", "conf", "jars")
"""What Spark needs from SPARK_HOME; `conf` is optional."""
CHOSEN = ("SPARK_HOME", "PYSPARK_GATEWAY_PORT", "SPARK_REMOTE")
"""If one of these variables is set, the user has chosen a Spark, or it runs already."""


def prepare(master: str, environment: MutableMapping[str, str] = os.environ) -> None:
    """Set SPARK_HOME for the next session if that helps.

    Only for local masters: for others Spark ships the archive to the executors.
    """
    if not master.startswith("local") or any(environment.get(name) for name in CHOSEN):
        return
    home = folder(environment)
    if home is not None:
        environment["SPARK_HOME"] = str(home)


def folder(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder for the installed pyspark; create it if it is missing.

    None if it cannot be created: Spark then uses its own SPARK_HOME and starts slower.
    """
    import pyspark

    try:
        return of_package(Path(pyspark.__file__).resolve().parent, cache.place("spark", environment))
    except (OSError, RuntimeError):
        return None


def of_package(package: Path, place: Path) -> Path | None:
    """Return the folder in `place` for an installed package; None for a package without Spark, as in an unpacked Spark.

    Raises `OSError`.
    """
    if not (package / "bin" / "spark-submit").is_file() or not (package / "jars").is_dir():
        return None
    home = place / hashlib.sha256(os.fsencode(package)).hexdigest()[:16]
    home.mkdir(parents=True, exist_ok=True)
    for name in LINKED:
        _link(home / name, package / name)
    return home


def _link(link: Path, target: Path) -> None:
    """Create the link atomically: another job may start at the same time."""
    if link.is_symlink() and link.readlink() == target:
        return
    with tempfile.TemporaryDirectory(dir=link.parent) as beside:
        made = Path(beside) / link.name
        made.symlink_to(target)
        made.replace(link)
