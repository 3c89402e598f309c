"""The kinds of jobs: each module turns a validated job into a query."""
