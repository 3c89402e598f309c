"""Replica placement: pure functions that compute assignments from brokers, failure domains and existing replicas.

`domains` has the rule (replicas spread over zones, then nodes), `place` the replicas of new partitions, and `plan` the
fewest moves to a legal and balanced state, by means of `flow`. See docs/decisions/0010.
"""
