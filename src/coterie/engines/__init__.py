"""Engines: they carry asks to where the clients are, and know neither tables nor algorithms."""
