"""The leadership of one controller, which fences all of its writes. Created by `election`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from penstock.state import keys
from penstock.state.store import Compare, CompareTarget


@dataclass
class Leadership:
    """One term of a controller. `lost` is set when it is known to be over."""

    epoch: int
    revision: int
    lost: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def condition(self) -> Compare:
        """Condition that each write of the controller has."""
        return Compare(keys.CONTROLLER, CompareTarget.MOD_REVISION, self.revision)
