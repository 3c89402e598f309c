"""Replica placement: pure functions that compute assignments from brokers, failure domains and existing replicas."""
