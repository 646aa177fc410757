"""Loggers of other makers, one file each: what a run measures is sent there too. No result depends on them."""
