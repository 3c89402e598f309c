"""Test doubles of brokers, for failures that a real broker does not produce on demand."""
