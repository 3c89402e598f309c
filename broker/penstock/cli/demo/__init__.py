"""`penstock demo`: real flights through a real broker, and a consumer group that loses a member."""
