"""The measured brokers: how each one is prepared, started and stopped."""
