"""Names of Kafka's internal topics. Penstock keeps their contents in the metadata store and does not create them.

Used by the broker, and by the operator to reject object names.
"""

from __future__ import annotations

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"})
"""Clients can neither create these nor produce to them. Ones created by an earlier release can be read and deleted."""
