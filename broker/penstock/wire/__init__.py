"""Encoding of the Kafka protocol: messages, record batches, compression. No I/O."""
