"""Benchmarks: `python -m benchmarks NAME ...` or `python benchmarks/run.py NAME ...`."""
