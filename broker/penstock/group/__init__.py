"""The group coordinator: the classic rebalance protocol, consumer groups (KIP-848), and committed offsets.

`state_machine` decides what a classic group's members get, without I/O; `phases` has the states, `member_list` the
session timeouts. `coordinator` drives it with timers and persistence; `consumer_groups` does so for the groups of
`modern`. `offsets` commits and reads offsets, and `retention` expires them. `ownership` has the shards of this broker;
`shard_writer` and `request_queue` write them to the store.
"""
