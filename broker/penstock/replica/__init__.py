"""Partition replicas on this broker: leader and follower roles, high watermark, ISR, producer state."""
