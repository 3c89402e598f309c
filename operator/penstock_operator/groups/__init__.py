"""The `ConsumerGroup` controller, and the discovery of groups."""
