"""Common parts of the end-to-end tests: the broker under test, third-party clients behind one interface, group members.

The tests in the parent folder use only these names; `drivers` contains all code for a specific client.
"""
