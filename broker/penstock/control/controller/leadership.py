"""The time of one controller, by which all that it writes is fenced. Made by `election`, held by all its work."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from penstock.state import keys
from penstock.state.store import Compare, CompareTarget


@dataclass
class Leadership:
    """The time of one controller. `lost` is set when it is known to be over; conditions hold until it is."""

    epoch: int
    revision: int
    lost: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def condition(self) -> Compare:
        """What each write of the controller has among its conditions."""
        return Compare(keys.CONTROLLER, CompareTarget.MOD_REVISION, self.revision)
