"""Controller runtime: watches, cache, work queue, batch runners, leader election, metrics, health."""
