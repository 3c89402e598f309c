"""Producer ids and the transaction coordinator: docs/decisions/0014."""
