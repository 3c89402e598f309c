"""Send a broker malformed requests and check that it continues to serve: `python -m bench.fuzz --help`."""
