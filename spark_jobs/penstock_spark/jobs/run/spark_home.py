"""A SPARK_HOME without Spark's archive of pyspark, so that Spark's Python processes start in half of the time.

Spark has them look for modules in `$SPARK_HOME/python/lib/pyspark.zip` before anywhere else. That archive has no
bytecode: each of the five processes behind a query's first batch compiles pyspark anew, although the installed package
beside it, which is the same, is compiled. Here Spark gets a folder with links to everything else that it takes from
SPARK_HOME. The image is built so too.

Called by `session`, and by others who start a session of their own.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from penstock_spark.jobs.run import cache

LINKED = ("bin", "conf", "jars")
"""What Spark takes from SPARK_HOME; `conf` need not be there."""
CHOSEN = ("SPARK_HOME", "PYSPARK_GATEWAY_PORT", "SPARK_REMOTE")
"""With any of these in the environment somebody has said which Spark it is, or it runs already."""


def prepare(master: str, environment: MutableMapping[str, str] = os.environ) -> None:
    """Sets SPARK_HOME for a session that starts next, if it gains by it.

    Masters that are not local are left alone: to their executors Spark ships the archive.
    """
    if not master.startswith("local") or any(environment.get(name) for name in CHOSEN):
        return
    home = folder(environment)
    if home is not None:
        environment["SPARK_HOME"] = str(home)


def folder(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The folder for the pyspark that is installed here, made where it is not there yet.

    None where it cannot be made: Spark finds itself then, and is only slower.
    """
    import pyspark

    try:
        return of_package(Path(pyspark.__file__).resolve().parent, cache.place("spark", environment))
    except (OSError, RuntimeError):
        return None


def of_package(package: Path, place: Path) -> Path | None:
    """The folder in `place` for an installed package; None for a package without a Spark, as an unpacked Spark has it.

    Raises OSError.
    """
    if not (package / "bin" / "spark-submit").is_file() or not (package / "jars").is_dir():
        return None
    home = place / hashlib.sha256(os.fsencode(package)).hexdigest()[:16]
    home.mkdir(parents=True, exist_ok=True)
    for name in LINKED:
        _link(home / name, package / name)
    return home


def _link(link: Path, target: Path) -> None:
    """In one step, since another job may start at the same moment."""
    if link.is_symlink() and link.readlink() == target:
        return
    with tempfile.TemporaryDirectory(dir=link.parent) as beside:
        made = Path(beside) / link.name
        made.symlink_to(target)
        made.replace(link)
