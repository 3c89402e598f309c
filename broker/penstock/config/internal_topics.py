"""Names of topics that belong to Kafka itself. Penstock keeps what they hold elsewhere, and has none of them.

Used by the broker, and by the operator for names that an object may not have.
"""

from __future__ import annotations

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"})
"""Nobody can create them or produce to them. One that an earlier release made can be read and deleted."""
