"""Groups of devices by how well they are connected."""

from __future__ import annotations

from collections.abc import Sequence


def groups(distances: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Nested groups of devices, by single linkage.

    Args:
        distances: Of each of n devices to all before it: the smaller, the better connected.

    Returns:
        For each device the number of its group at each level, from the outermost to those whose
        devices are as close as any; levels at which all are in one group are left out.
    """
    count = len(distances)
    far = sorted({distances[a][b] for a in range(count) for b in range(a)}, reverse=True)
    found: list[tuple[int, ...]] = [() for _ in distances]
    for level in far[1:]:
        group = list(range(count))
        for a in range(count):
            for b in range(a):
                if distances[a][b] <= level and group[a] != group[b]:
                    old, new = group[a], group[b]
                    group = [new if each == old else each for each in group]
        if len(set(group)) > 1:
            found = [(*path, each) for path, each in zip(found, group, strict=True)]
    return found
