"""Planted faults: each breaks a guarantee of the broker, and a test must detect it."""
