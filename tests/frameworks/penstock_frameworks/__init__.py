"""Common parts of the tests of stream processing frameworks."""
