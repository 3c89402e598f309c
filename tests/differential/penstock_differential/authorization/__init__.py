"""Authorization beside Kafka's StandardAuthorizer: every served API by principals with every single right."""
