"""Headline comparisons computed a second time, from the papers alone: only data and splits come from coterie."""
