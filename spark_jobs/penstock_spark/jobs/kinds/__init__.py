"""The kinds of jobs: one module each."""
