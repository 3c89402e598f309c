"""The controller of `ConsumerGroup` resources: looks, plans with `reconcile.group`, carries out; and finds groups."""
