"""The numbers with which the pool level weighs what devices are worth to runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Weighing:
    """What ``allocation`` cannot know of the runs; set by hand unless something else is said.

    Attributes:
        concavity: k devices speed a run up by about k to this power: between 0 and 1.
        price: What a device must add at least, in speeds of one device: those that add less stay
            free.
        patience_s: Time after which devices may well change again, so that a restart must pay
            until then, seconds.
        growth: Times the most devices that were measured which are thought possible (Pollux,
            section 4.3).
        newcomer: What a run of which nothing was measured is taken to have left, over the median
            of the others.
    """

    concavity: float = 0.7
    price: float = 0.1
    patience_s: float = 180.0
    growth: float = 2.0
    newcomer: float = 0.0
