"""Request handlers, one module per group of APIs, and the interface between them and the server (`exchange`)."""
