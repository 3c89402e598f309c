"""Planning of a Cluster: compares its spec with the observed state and returns actions."""
