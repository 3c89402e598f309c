"""The brokers that are measured: how each one is prepared, started and stopped."""
