from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_rlsched.policy.allocation import (
    IMPOSSIBLE,
    Batches,
    fairness_worth,
    fastest,
    flow_time_worth,
    keeping,
    place,
    shares,
    sizes,
    weights,
)
from mlflow_rlsched.policy.weighing import Weighing

OPTIONS = [1, 2, 4, 8]
HAND = Weighing()


def spread(counts: Sequence[int], per_node: int, nodes: int) -> list[dict[int, int]]:
    """Held devices, filled node after node: whatever runs may hold by now."""
    devices = iter([node for node in range(nodes) for _ in range(per_node)])
    found: list[dict[int, int]] = []
    for count in counts:
        held: dict[int, int] = {}
        for node in itertools.islice(devices, count):
            held[node] = held.get(node, 0) + 1
        found.append(held)
    return found


@st.composite
def worths(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    """What devices are worth to some runs, some of them impossible, none is always possible."""
    runs = draw(st.integers(1, 5))
    value = st.one_of(st.just(IMPOSSIBLE), st.integers(-3, 9).map(float))
    rows = st.lists(value, min_size=len(OPTIONS), max_size=len(OPTIONS))
    table = [[0.0, *draw(rows)] for _ in range(runs)]
    return np.array(table), draw(st.integers(1, 12))


@given(worths())
def test_shares_are_the_best_there_are(case: tuple[np.ndarray, int]) -> None:
    worth, devices = case
    counts = [0, *OPTIONS]

    def value(chosen: Sequence[int]) -> float:
        return sum(worth[run, counts.index(count)] for run, count in enumerate(chosen))

    found = shares(worth, OPTIONS, devices)
    assert sum(found) <= devices
    assert value(found) == max(
        value(chosen)
        for chosen in itertools.product(counts, repeat=len(worth))
        if sum(chosen) <= devices
    )
    assert found == shares(worth.copy(), OPTIONS, devices)


def test_a_run_gets_no_fewer_than_it_must_have() -> None:
    worth = np.array([[IMPOSSIBLE, IMPOSSIBLE, 1.0, 2.0, 3.0], [0.0, 9.0, 9.1, 9.2, 9.3]])
    assert shares(worth, OPTIONS, 3) == [2, 1]
    with pytest.raises(ValueError, match="1 devices are fewer"):
        shares(worth, OPTIONS, 1)


def test_of_equal_numbers_the_fewest() -> None:
    assert shares(np.array([[0.0, 1.0, 1.0, 1.0, 1.0]]), OPTIONS, 8) == [1]


@pytest.mark.parametrize(
    ("devices", "per_node", "expected"),
    [
        (16, 4, [1, 2, 4, 8, 12, 16]),
        (2, 4, [1, 2]),
        (3, 1, [1, 2, 3]),
        (12, 6, [1, 2, 4, 6, 12]),
    ],
)
def test_sizes_fit_into_nodes(devices: int, per_node: int, expected: list[int]) -> None:
    assert sizes(devices, per_node) == expected


@st.composite
def pools(draw: st.DrawFn) -> tuple[int, list[int], list[int]]:
    """Nodes of 4 devices, and the numbers of devices that runs held and shall have."""
    nodes = draw(st.integers(1, 4))
    options = sizes(4 * nodes, 4)
    before, after = [], []
    for counts in (before, after):
        free = 4 * nodes
        for _ in range(6):
            fitting = [0, *(n for n in options if n <= free)]
            counts.append(draw(st.sampled_from(fitting)))
            free -= counts[-1]
    return nodes, before, after


@given(pools())
def test_every_run_is_on_as_few_nodes_as_can_be(case: tuple[int, list[int], list[int]]) -> None:
    nodes, before, after = case
    room = dict.fromkeys(range(nodes), 4)
    held = place(before, [{}] * len(before), room)
    found = place(after, held, room)
    for node in room:
        assert sum(places.get(node, 0) for places in found) <= 4
    for count, places in zip(after, found, strict=True):
        assert sum(places.values()) == count
        assert len(places) == -(-count // 4)
    assert found == place(after, held, room)
    assert place(before, held, room) == held  # nobody moves where nothing changes


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=5),
    st.lists(st.integers(1, 7), min_size=1, max_size=4),
)
def test_any_number_on_any_nodes_is_found(counts: list[int], capacities: list[int]) -> None:
    room = dict(enumerate(capacities))
    free = sum(capacities)
    wanted = []
    for count in counts:
        wanted.append(min(count, free))
        free -= wanted[-1]
    found = place(wanted, [{}] * len(wanted), room)
    assert [sum(places.values()) for places in found] == wanted
    for node, capacity in room.items():
        assert sum(places.get(node, 0) for places in found) <= capacity


def test_a_run_keeps_its_devices_and_others_fill_up_a_node() -> None:
    room = {"a": 4, "b": 4}
    held: list[dict[str, int]] = [{"b": 2}, {}, {}]
    assert place([2, 1, 4], held, room) == [{"b": 2}, {"b": 1}, {"a": 4}]


def test_the_smallest_moves_for_one_that_needs_a_node() -> None:
    held = spread([1, 2, 0], 2, 2)
    assert held == [{0: 1}, {0: 1, 1: 1}, {}]
    room = {0: 4, 1: 4}
    held = [{0: 1}, {1: 2}, {}]
    assert place([1, 2, 4], held, room) == [{1: 1}, {1: 2}, {0: 4}]


def test_a_held_device_that_is_gone_is_replaced() -> None:
    assert place([1], [{"lost": 1}], {"a": 1}) == [{"a": 1}]


def test_the_shorter_the_more_it_weighs_and_equal_ones_by_their_order() -> None:
    found = weights(np.array([50.0, 10.0, 1000.0]), HAND)
    assert found[1] > found[0] > found[2] == 1
    alike = list(weights(np.array([7.0, 7.0]), HAND))
    assert alike == sorted(alike)


def test_two_alike_share_by_what_they_have_left() -> None:
    speed = np.array([[1.0, 1.7, 2.9, 4.9]] * 2)
    kept = np.ones_like(speed)
    worth = flow_time_worth(speed, kept, np.array([100.0, 1000.0]), OPTIONS, HAND)
    first, second = shares(worth, OPTIONS, 6)
    assert first == 4
    assert second == 2


def test_devices_that_add_next_to_nothing_stay_free() -> None:
    speed = np.array([[1.0, 1.9, 2.0, 2.05]])
    worth = flow_time_worth(speed, np.ones_like(speed), np.array([100.0]), OPTIONS, HAND)
    assert shares(worth, OPTIONS, 8) == [2]


def test_nobody_restarts_for_little() -> None:
    speed = np.array([[1.0, 1.9, 3.6, 3.8]])
    for held, until, expected in ((4, 300.0, 4), (2, 300.0, 4), (2, 40.0, 2)):
        kept = keeping(OPTIONS, [held], 30.0, until)
        worth = flow_time_worth(speed, kept, np.array([100.0]), OPTIONS, HAND)
        assert shares(worth, OPTIONS, 8) == [expected]


def test_where_none_shall_be_slow_each_has_one_before_any_has_more() -> None:
    speed = np.array([[1.0, 2.0, 4.0, 8.0], [1.0, 1.1, 1.2, 1.3], [1.0, 0.0, 0.0, 0.0]])
    worth = fairness_worth(speed, np.ones_like(speed))
    assert shares(worth, OPTIONS, 3) == [1, 1, 1]
    assert shares(worth, OPTIONS, 6) == [4, 1, 1]


# A step takes a second for its gradients and a millisecond a sample; several devices wait as long
# again for each other.
MODEL = np.log([[1.0, 1e-3, 1.0, 1e-9, 0.5, 1e-9, 1.0]])


def speeds(noise: float, most: float = 6400.0) -> tuple[np.ndarray, np.ndarray]:
    batches = Batches(np.array([100.0]), np.array([most]), np.array([50.0]))
    return fastest(MODEL, np.array([noise]), batches, OPTIONS, 4)


def test_a_noisy_gradient_asks_for_large_batches() -> None:
    calm, noisy = speeds(10.0), speeds(1e6)
    assert (noisy[1] > 10 * calm[1]).all()
    # At a noise scale without bound each sample is worth the same: batch over step time.
    assert noisy[0][0, 0] == pytest.approx(6400 / 7.4, rel=0.01)


def test_of_an_unknown_noise_the_smallest_batch_is_taken() -> None:
    assert list(speeds(np.nan)[1][0]) == [100, 100, 200, 400]


def test_more_devices_than_the_largest_batch_feeds_are_none() -> None:
    rates, _ = speeds(10.0, most=200.0)
    assert (rates[0] > 0).tolist() == [True, True, True, False]
