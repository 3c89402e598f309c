"""What can be set: topic and broker settings by Kafka's names, with types, defaults and validation."""
