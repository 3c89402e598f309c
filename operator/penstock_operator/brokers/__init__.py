"""Implementation of `ports.brokers` with the admin client of `penstock.client`."""
