"""Parameters as MLflow holds them, as values of Optuna's distributions.

MLflow's own backend stores shell-quoted text (``'a b'``), a training logs what Python makes of it
(``0.001`` for ``1e-3``), and all is cut at 6,000 characters.
"""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

LONGEST = 6000
"""Characters of a value that MLflow keeps."""


class UnusableError(ValueError):
    """A value that no trial can have; the text says why, without the value itself."""


def converted(text: str, distribution: BaseDistribution, name: str) -> Any:
    """A parameter's text as a value of its distribution.

    Args:
        text: As MLflow holds it.
        distribution: One of Optuna's.
        name: Of the parameter, for the error.

    Raises:
        UnusableError: The distribution has no such value.
    """
    from optuna.distributions import CategoricalDistribution, IntDistribution

    if len(text) >= LONGEST:
        raise UnusableError(f"{name} was cut at {LONGEST:,} characters")
    if isinstance(distribution, CategoricalDistribution):
        for choice in distribution.choices:
            if same(text, str(choice), numeric=not isinstance(choice, bool)):
                return choice
        raise UnusableError(f"{name} is none of the choices")
    number = _number(text)
    if number is None:
        raise UnusableError(f"{name} is no number")
    low, high = distribution.low, distribution.high
    if isinstance(distribution, IntDistribution) and number != math.floor(number):
        raise UnusableError(f"{name} is no whole number")
    if not low <= number <= high:
        raise UnusableError(f"{name} is outside {low:g} to {high:g}")
    step = distribution.step
    if step is not None:
        steps = (number - low) / step
        if abs(steps - round(steps)) > 1e-8:
            raise UnusableError(f"{name} is between the steps of {step:g}")
    return int(number) if isinstance(distribution, IntDistribution) else float(number)


def same(one: str, other: str, numeric: bool = True) -> bool:
    """Whether two texts are the same value, quoted or not, and as numbers if ``numeric``."""
    one, other = unquoted(one), unquoted(other)
    if one == other:
        return True
    number = _number(one) if numeric else None
    return number is not None and number == _number(other)


def unquoted(text: str) -> str:
    """A text without the quotes that a shell would take off."""
    if text[:1] not in ("'", '"'):
        return text
    try:
        words = shlex.split(text)
    except ValueError:
        return text
    return words[0] if len(words) == 1 else text


def _number(text: str) -> int | float | None:
    """A finite number, whole ones exactly; None for anything else."""
    text = unquoted(text)
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
