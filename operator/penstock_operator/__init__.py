"""Kubernetes operator: reconciles `Cluster`, `Topic`, `ConsumerGroup` and `User` objects with the brokers."""

__version__ = "0.1.0"
