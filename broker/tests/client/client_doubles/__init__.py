"""Brokers that fail on demand, for what a real one cannot be made to do."""
