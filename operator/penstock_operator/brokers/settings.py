"""Conversion of setting changes to client requests. Used by the gateway."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.client import AlterConfig


def alterations(settings: Mapping[str, str | None]) -> list[AlterConfig]:
    """Return the alterations; None resets a setting to its default."""
    return [AlterConfig(name, value, "delete" if value is None else "set") for name, value in sorted(settings.items())]
