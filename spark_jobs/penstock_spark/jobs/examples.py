"""A commented example of each kind, for `penstock-spark init` and `list`. Kept as files beside this module."""

from __future__ import annotations

from importlib import resources

from penstock_spark.jobs.spec.kinds import KINDS


def example(kind: str) -> str:
    """The example of a kind. Raises `KeyError`."""
    if kind not in KINDS:
        raise KeyError(kind)
    return (resources.files("penstock_spark.jobs") / "templates" / f"{kind}.yaml").read_text(encoding="utf-8")


def line(kind: str) -> str:
    """What a kind does, in a line: the first sentence of its docstring."""
    return " ".join((KINDS[kind].__doc__ or "").split()).split(". ")[0].rstrip(".")
