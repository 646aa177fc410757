"""Runs: one method on one engine, or every method and seed of an experiment, with their files."""
