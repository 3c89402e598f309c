"""What must be agreed: the `Store`, its keys and records, and each broker's view of them."""
