"""Planning of a ConsumerGroup: offset resets, starting offsets, ownership, status."""
