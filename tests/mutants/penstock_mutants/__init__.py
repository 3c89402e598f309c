"""Mutation testing: random small changes of the source that the unit tests of the same package must detect."""
