"""Sends the same generated requests to Penstock and to Apache Kafka, and compares the answers."""
