"""Limits of requests of members of classic groups. Used by `coordinator`."""

from __future__ import annotations

from penstock.config.broker import BrokerConfig
from penstock.control.group_settings import MAX_GROUP_ID_CHARS
from penstock.group.calls import JoinRequest
from penstock.wire.errors import ErrorCode

MAX_INSTANCE_ID = 1024
MAX_PROTOCOLS = 64
"""Maximum number of assignors of a member."""
MAX_METADATA_BYTES = 8 << 20
"""Maximum metadata size of a member, over all its assignors."""


def check_join(config: BrokerConfig, group_id: str, request: JoinRequest) -> ErrorCode:
    """Return the error for a JoinGroup request that exceeds a limit, or NONE."""
    if not is_group_id(group_id):
        return ErrorCode.INVALID_GROUP_ID
    if not (config.group_min_session_timeout_ms <= request.session_timeout_ms <= config.group_max_session_timeout_ms):
        return ErrorCode.INVALID_SESSION_TIMEOUT
    metadata_bytes = sum(map(len, request.protocols.values()))
    too_long = request.instance_id is not None and not 0 < len(request.instance_id) <= MAX_INSTANCE_ID
    if too_long or len(request.protocols) > MAX_PROTOCOLS or metadata_bytes > MAX_METADATA_BYTES:
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE


def is_group_id(group_id: str) -> bool:
    """Return whether the group id has a valid length."""
    return 0 < len(group_id) <= MAX_GROUP_ID_CHARS
