"""The custom resources as typed values, each kind in a module of its own; pure."""
