"""Shared code of the Spark tests: brokers as processes, topics, records written by another client."""
