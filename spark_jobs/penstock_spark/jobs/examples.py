"""Commented example jobs for `penstock-spark init` and `list`. The files are in `templates`."""

from __future__ import annotations

from importlib import resources

from penstock_spark.jobs.spec.kinds import KINDS


def example(kind: str) -> str:
    """Return the example of a kind. Raises `KeyError`."""
    if kind not in KINDS:
        raise KeyError(kind)
    return (resources.files("penstock_spark.jobs") / "templates" / f"{kind}.yaml").read_text(encoding="utf-8")


def summary(kind: str) -> str:
    """Return a one-line description of a kind: the first sentence of its docstring."""
    return " ".join((KINDS[kind].__doc__ or "").split()).split(". ")[0].rstrip(".")
