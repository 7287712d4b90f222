"""The parameters of a search as they are written on the command line.

``NAME=uniform(a,b)``, ``NAME=loguniform(a,b)``, ``NAME=int(a,b)``, ``NAME=int(a,b,log)``,
``NAME=choice(a,b,…)`` are searched, ``NAME=VALUE`` is fixed.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlflow_rlsched.search.values import same, unquoted

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

KINDS = ("uniform(a,b)", "loguniform(a,b)", "int(a,b)", "int(a,b,log)", "choice(a,b,…)")

_NAMES = ("uniform", "loguniform", "int", "choice")
_CALL = re.compile(r"\s*([A-Za-z_]+)\s*([(\[{].*?)\s*", re.DOTALL)
_ITEM = re.compile(r"""\s*('[^']*'|"[^"]*"|[^,]*)\s*(,|$)""")


class SpaceError(ValueError):
    """A parameter that is written wrongly: what, and what to write instead, in a sentence."""


@dataclass(frozen=True)
class Space:
    """What is searched and what is fixed, by the name of the parameter."""

    searched: dict[str, BaseDistribution]
    fixed: dict[str, str]


def parse(assignments: Sequence[str]) -> Space:
    """The space that ``-P`` options describe.

    Args:
        assignments: ``NAME=EXPRESSION``, each.

    Raises:
        SpaceError: One of them is wrong, or nothing is searched.
    """
    space = Space({}, {})
    for assignment in assignments:
        name, equals, expression = assignment.partition("=")
        if not equals or not name:
            raise SpaceError(f"-P {assignment!r} must be NAME=VALUE, or NAME= one of {_kinds()}")
        if name in space.searched or name in space.fixed:
            raise SpaceError(f"-P {name} is given twice")
        found = _parsed(name, expression)
        if isinstance(found, str):
            space.fixed[name] = found
        else:
            space.searched[name] = found
    if not space.searched:
        raise SpaceError(f"nothing is searched: give at least one -P NAME= one of {_kinds()}")
    return space


def _parsed(name: str, expression: str) -> BaseDistribution | str:
    found = _CALL.fullmatch(expression)
    kind = found.group(1) if found else ""
    if found is None or kind not in _NAMES:
        near = difflib.get_close_matches(kind.lower(), _NAMES, 1) if found else []
        if near:
            raise SpaceError(
                f"-P {name}: {kind}(…) is no distribution (did you mean {near[0]}?); known are"
                f" {_kinds()}"
            )
        return expression
    forms = " or ".join(each for each in KINDS if each.startswith(f"{kind}("))
    wrong = SpaceError(f"-P {name}: {expression} must be {forms}")
    body = found.group(2)
    if not (body.startswith("(") and body.endswith(")")):
        raise wrong
    items = _items(body[1:-1])
    if kind == "choice":
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(_choices(name, items))
    log = kind == "loguniform"
    if kind == "int" and len(items) == 3 and items[2] == "log":
        log, items = True, items[:2]
    if len(items) != 2:
        raise wrong
    return _interval(name, expression, items, log, whole=kind == "int")


def _interval(
    name: str, expression: str, ends: Sequence[str], log: bool, whole: bool
) -> BaseDistribution:
    from optuna.distributions import FloatDistribution, IntDistribution

    low, high = (_whole(name, end) if whole else _real(name, end) for end in ends)
    if low >= high:
        raise SpaceError(
            f"-P {name}: {expression} goes from {low:g} to {high:g}: swap them, or give one value"
        )
    if log and low <= 0:
        raise SpaceError(f"-P {name}: {expression} is logarithmic: it must begin above 0")
    if whole:
        return IntDistribution(int(low), int(high), log=log)
    return FloatDistribution(low, high, log=log)


def _choices(name: str, items: Sequence[str]) -> list[str]:
    if items == [""]:
        raise SpaceError(f"-P {name}: choice() needs at least one value")
    for place, item in enumerate(items):
        if any(same(item, other) for other in items[:place]):
            raise SpaceError(f"-P {name}: choice(…) has the value {item!r} twice")
    return list(items)


def _items(text: str) -> list[str]:
    """Values between commas, without the quotes round them."""
    items: list[str] = []
    place = 0
    while True:
        found = _ITEM.match(text, place)
        if found is None:  # something after a closing quote
            return [*items, text[place:].strip()]
        items.append(unquoted(found.group(1).strip()))
        place = found.end()
        if not found.group(2):
            return items


def _whole(name: str, text: str) -> float:
    value = _real(name, text)
    if value != math.floor(value):
        raise SpaceError(
            f"-P {name}: {text} is no whole number, which int(a,b) needs; uniform(a,b) takes others"
        )
    return value


def _real(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise SpaceError(f"-P {name}: {text!r} is no number")
    return value


def _kinds() -> str:
    return ", ".join(KINDS)
