"""The metadata store that brokers share: the `Store`, its keys and records, and each broker's view of them."""
