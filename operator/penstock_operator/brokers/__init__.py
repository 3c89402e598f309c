"""Brokers: `ports.brokers` on the Kafka admin protocol, by `penstock.client`."""
