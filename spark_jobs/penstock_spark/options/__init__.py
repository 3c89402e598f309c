"""Parses the options that users set with `.option(...)`, named as in Spark's Kafka connector. No I/O."""
