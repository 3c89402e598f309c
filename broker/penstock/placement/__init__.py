"""Where replicas live: pure functions from brokers, failure domains and what there is to what should be."""
