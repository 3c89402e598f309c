"""Planning per kind: pure functions from desired and observed state to a `ReconcilePlan`."""
