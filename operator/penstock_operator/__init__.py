"""The operator: makes Kubernetes objects and brokers what `Cluster`, `Topic` and `ConsumerGroup` resources say."""

__version__ = "0.1.0"
