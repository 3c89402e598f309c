"""Penstock's Spark data source beside Spark's own Kafka connector: each session in a separate process."""
