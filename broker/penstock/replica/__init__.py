"""Partition replicas on this broker: leader and follower roles, high watermark, ISR, producer state.

`roles` assigns the role that the view specifies. `leader` validates and appends batches; `isr` computes the high
watermark, `isr_keeper` and `isr_changes` shrink and expand the ISR. `follower` appends what `fetcher` fetches.
"""
