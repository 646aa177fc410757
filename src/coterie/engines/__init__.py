"""Engines: they carry asks to where the clients are, and know neither tables nor algorithms."""

from coterie.core.schema import Registry

__all__ = ["ENGINES"]

ENGINES = Registry(
    "engine",
    {"inprocess": "coterie.engines.inprocess:InProcess", "ray": "coterie.engines.ray:Ray"},
    default="inprocess",
)
"""What `[engine] name = ...` can name."""
