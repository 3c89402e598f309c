"""The administration client: brokers, topics, settings, groups, lags and partitions."""
