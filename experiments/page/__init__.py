"""docs/results.md, written from the files of experiments/results and benchmarks/results alone."""

from experiments.page.build import page, pages

__all__ = ["page", "pages"]
