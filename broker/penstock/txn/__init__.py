"""Producer ids; later the transaction coordinator."""
