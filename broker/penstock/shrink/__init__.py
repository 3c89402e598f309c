"""Fewer partitions of a topic: seals surplus partitions, relays what producers still send to them, and hides them once
they are read. Created by `node`.
"""
