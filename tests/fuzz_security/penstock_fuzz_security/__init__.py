"""Mutated inputs for everything that reads what an unauthenticated client, a file or an administrator wrote."""
