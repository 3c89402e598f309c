"""Topic, broker and group settings by their Kafka names, with types, defaults and validation."""
