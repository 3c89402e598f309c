"""TLS of listeners: contexts from key stores, connections, client principals, and reloading of certificates."""
