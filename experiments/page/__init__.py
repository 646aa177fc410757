"""docs/results.md, written from the files of experiments/results and benchmarks/results alone."""

from experiments.page.build import ORDER, kinds, page, pages

__all__ = ["ORDER", "kinds", "page", "pages"]
