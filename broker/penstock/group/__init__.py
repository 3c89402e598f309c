"""The group coordinator: the classic rebalance protocol and committed offsets.

`state_machine` decides what a group's members get, without I/O; `phases` has the states, `member_list` the session
timeouts. `coordinator` drives it with timers and persistence. `offsets` commits and reads offsets, and `retention`
expires them. `ownership` has the shards of this broker; `shard_writer` and `request_queue` write them to the store.
"""
