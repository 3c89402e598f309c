"""`penstock demo`: produces and consumes a real data set, and kills a member of the consumer group."""
