"""Groups whose broker assigns partitions (KIP-848): what consumer groups and share groups have in common.

`group` is the state of one group, without I/O; `reconciliation` moves a member to its target, and `assignors` compute
targets. `topics` resolves subscriptions. `persistence` converts members to store records.
"""
