"""What went wrong outside, for people."""

from __future__ import annotations

from mlflow_rlsched.credentials import redacted

_LONGEST = 700


def reason(error: BaseException) -> str:
    """Why something failed, in the words of the innermost cause, on one line."""
    while (inner := _cause(error)) is not None:
        error = inner
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return redacted(" ".join(str(text).strip().splitlines()[0].split()))[:_LONGEST]


def _cause(error: BaseException) -> BaseException | None:
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)
