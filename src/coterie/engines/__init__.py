"""Engines: they carry asks to where the clients are, and know neither tables nor algorithms."""

from coterie.config.schema import Flag, Registry

__all__ = ["ENGINES"]

ENGINES = Registry(
    "engine",
    {"inprocess": "coterie.engines.inprocess:InProcess", "ray": "coterie.engines.ray:Ray"},
    base="coterie.contract.engine:EngineSpec",
    default="inprocess",
    flag=Flag("--engine", "NAME"),
)
"""What `[engine] name = ...` can name."""
