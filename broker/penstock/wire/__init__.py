"""The Kafka protocol as bytes: messages, record batches, compression. No sockets, no clock, no disk."""
