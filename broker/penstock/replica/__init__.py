"""A partition in this broker: the leader's role, high watermark, producer state, waiting readers."""
