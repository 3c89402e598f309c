"""What the end-to-end tests share: the broker under test, other people's clients behind one interface, group members.

The tests in the folder above know only these names; whatever is particular to one client lives in `drivers`.
"""
