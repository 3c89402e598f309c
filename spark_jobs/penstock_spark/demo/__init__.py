"""The demo: real flights through a broker into two Spark jobs, one of which is killed and goes on. Nothing is faked.

`story` runs it, `cli.demo` shows it.
"""
