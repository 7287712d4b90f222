"""The commands behind every number in the README: ``python -m benchmarks.NAME``."""
