"""What differs between consumer groups and share groups, by group type. Used by `group.modern_groups`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from penstock.config.modern_groups import (
    ModernGroupConfig,
    ModernGroupDefaults,
    consumer_group_config,
    share_group_config,
)
from penstock.group.modern.assignors import CONSUMER_ASSIGNORS, Assignor
from penstock.group.modern.consumer import MemberHeartbeat, check_heartbeat
from penstock.group.modern.group import GroupType
from penstock.group.modern.share import check_share_heartbeat
from penstock.group.modern.sharing import SHARE_ASSIGNORS


@dataclass(frozen=True, slots=True)
class ModernProtocol:
    """The rules of a type of groups. `check` raises `GroupError` for a request that no member may send."""

    group_type: GroupType
    check: Callable[[MemberHeartbeat, Iterable[str]], None]
    known_assignors: Mapping[str, Assignor]
    config_of: Callable[[ModernGroupDefaults, Mapping[str, str]], ModernGroupConfig]
    """Returns the effective settings of a group from the broker's and its own."""

    def assignors(self, config: ModernGroupDefaults) -> dict[str, Assignor]:
        """Return the assignors that the broker permits; the first is the default."""
        names: tuple[str, ...] = getattr(config, f"group_{self.group_type}_assignors")
        return {name: self.known_assignors[name] for name in names}

    def max_size(self, config: ModernGroupDefaults) -> int:
        """Return the maximum number of members of a group."""
        size: int = getattr(config, f"group_{self.group_type}_max_size")
        return size


MODERN_PROTOCOLS: Mapping[str, ModernProtocol] = {
    protocol.group_type: protocol
    for protocol in (
        ModernProtocol(GroupType.CONSUMER, check_heartbeat, CONSUMER_ASSIGNORS, consumer_group_config),
        ModernProtocol(GroupType.SHARE, check_share_heartbeat, SHARE_ASSIGNORS, share_group_config),
    )
}
