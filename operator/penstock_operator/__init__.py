"""Kubernetes operator: reconciles `Cluster`, `Topic` and `ConsumerGroup` resources with Kubernetes and the brokers."""

__version__ = "0.1.0"
