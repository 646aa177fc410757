"""The researcher's workbench: what a notebook does with runs, built on `run` and `report`."""
