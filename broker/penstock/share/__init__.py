"""Share groups (KIP-932): records of a partition are delivered to one member each and acknowledged one by one.

The leader of a partition decides who gets which records (`partition`); the group's coordinator stores the decisions
(`state`).
"""
