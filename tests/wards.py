"""Wards of a hospital whose patients die, and fall: tables with a time to event and with counts."""

from __future__ import annotations

import numpy as np
import pandas as pd


def ward(seed, n=420):
    """Patients who die earlier, and fall more often, the older they are."""
    rng = np.random.default_rng(seed)
    age = rng.normal(60, 10, n).round(1)
    until = rng.exponential(40 * np.exp(-(age - 60) / 15))
    end = rng.uniform(5, 60, n)
    days = rng.integers(2, 40, n)
    return pd.DataFrame(
        {
            "age": age,
            "bmi": rng.normal(25, 3, n).round(1),
            "enrolled": rng.uniform(0, 1, n).round(2) * (np.arange(n) % 3 == 0),
            "months": (np.minimum(until, end) + 1.1).round(2),
            "died": (until <= end).astype(int),
            "falls": rng.poisson(0.02 * days * np.exp((age - 60) / 20)),
            "bed_days": days,
        }
    )
