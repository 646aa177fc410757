"""What is wrong with how a call ends: it may return, or raise an error of coterie in one sentence."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path

import coterie as ct


def wrong_with(call: Callable[[], object], *, missing: bool = False) -> str:
    """Say what is wrong with how a call ends, or nothing; with `missing` Python may refuse it for an argument that it lacks."""
    try:
        call()
    except ct.CoterieError as error:
        words = str(error)
        return (
            ""
            if words and "\n" not in words and len(words) <= 600
            else f"no sentence: {words[:200]!r}"
        )
    except BaseException as error:
        if (
            missing
            and isinstance(error, TypeError)
            and "missing" in str(error)
            and "required" in str(error)
        ):
            return ""
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"traceback: {type(error).__name__}: {str(error)[:120]} ({Path(where.filename).name}:{where.lineno})"
    return ""
