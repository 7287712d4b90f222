"""Who gets which devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mlflow_rlsched.agent.forecast import Holding, earliest
from mlflow_rlsched.agent.placement import Scene, plan, pressure
from mlflow_rlsched.agent.ranking import Ranking
from mlflow_rlsched.config import RunConfig, resolve
from mlflow_rlsched.devices.interface import Device
from mlflow_rlsched.store import LEARNING_PRIORITY, DeviceShare, State, Task
from tests.task_specs import make_spec

GPUS = [Device(f"GPU-{i}", "nvidia", i, "H100 80GB", 80_000_000_000) for i in range(4)]
SLOTS = [Device(f"cpu-{i}", "cpu", i, "CPU slot") for i in range(4)]


def task(run_id: str, order: int = 0, priority: int = 0, **settings: Any) -> Task:
    config = resolve(settings, None, {}).model_dump(mode="json")
    return Task(
        make_spec(run_id, config=config), State.QUEUED, priority, submitted_at=0.0, order=order
    )


def grants(
    tasks: list[Task],
    devices: list[Device],
    free: dict[str, int] | None = None,
    draining: tuple[str, ...] = (),
    holdings: tuple[Holding, ...] = (),
    is_late: Callable[[Task, float], bool] = lambda task, in_s: False,
    closed: tuple[str, ...] = (),
) -> Any:
    full = {device.id: 100 for device in devices}
    scene = Scene(
        lambda t: RunConfig.model_validate(t.spec.config),
        lambda _: devices,
        full if free is None else free,
        devices[0].kind,
        holdings,
        draining,
        is_late,
        closed,
    )
    made = plan(Ranking(tasks, lambda _: 0.0), scene).grants
    return [(g.task.run_id, [(s.device, s.amount) for s in g.shares]) for g in made]


def test_others_pass_one_that_cannot_tell_when_on_devices_that_it_cannot_use() -> None:
    devices = [Device("GPU-0", "nvidia", 0, "L4"), *GPUS[1:]]
    endless = (Holding("r", [DeviceShare("GPU-0")]),)
    asked = [task("a", requires={"gpu_type": "L4"}), task("b", 1, requires={"gpu_type": "H100"})]
    free = {"GPU-0": 0, "GPU-1": 100}
    assert grants(asked, devices, free, holdings=endless) == [("b", [("GPU-1", 100)])]
    asked = [task("a", gpus=2), task("b", 1, timeout_s=1.0)]
    assert grants(asked, devices, free, holdings=endless) == [], "it may be needed at any moment"


def test_each_gets_its_own_in_order() -> None:
    asked = [task("a", gpus=2), task("b", gpus=1)]
    assert grants(asked, GPUS) == [
        ("a", [("GPU-0", 100), ("GPU-1", 100)]),
        ("b", [("GPU-2", 100)]),
    ]


def test_one_that_does_not_fit_holds_back_those_behind_it() -> None:
    asked = [task("big", gpus=3), task("small", gpus=1)]
    free = {"GPU-0": 100, "GPU-1": 100, "GPU-2": 0, "GPU-3": 0}
    held = (Holding("r", (DeviceShare("GPU-2"), DeviceShare("GPU-3"))),)
    assert grants(asked, GPUS, free, holdings=held) == []
    assert grants(asked, GPUS, free) == [("small", [("GPU-0", 100)])], "two are out of order"


def test_who_needs_a_device_in_quarantine_holds_back_nobody() -> None:
    free = {"GPU-0": 0, "GPU-1": 100, "GPU-2": 0, "GPU-3": 0}
    held = (Holding("r", tuple(DeviceShare(f"GPU-{n}") for n in (0, 2, 3))),)
    asked = [task("big", gpus=4), task("small", gpus=1)]
    assert grants(asked, GPUS, free, holdings=held) == []
    starts = [("small", [("GPU-1", 100)])]
    assert grants(asked, GPUS, free, holdings=held, closed=("GPU-0",)) == starts
    asked = [task("three", gpus=3), task("small", gpus=1)]
    closed = grants(asked, GPUS, free, holdings=held, closed=("GPU-0",))
    assert closed == [], "there are three in order"


def resized(run_id: str, goes_on_with: int, **settings: Any) -> Task:
    waiting = task(run_id, **{"gpus": {"initial": 1, "min": 1, "max": 4}, **settings})
    return replace(waiting, exit_reason="resized", gpus=goes_on_with)


def test_what_a_run_gave_back_to_be_resized_is_its_own() -> None:
    asked = [task("first", priority=9, gpus=2), resized("a", 3)]
    assert [name for name, _ in grants(asked, GPUS)] == ["a"]
    assert grants(asked, GPUS, draining=("a",)) == [], "its devices are not empty yet"
    assert [name for name, _ in grants(asked, GPUS, draining=("another",))] == ["a"]


def test_a_run_goes_on_with_what_there_is_of_the_devices_that_it_wanted() -> None:
    two = {"GPU-0": 100, "GPU-1": 100}
    assert [len(shares) for _, shares in grants([resized("a", 4)], GPUS, two)] == [2]
    least = {"initial": 3, "min": 3, "max": 4}
    assert grants([resized("a", 4, gpus=least)], GPUS, two) == []
    first = task("a", gpus={"initial": 3, "min": 1, "max": 4})
    assert grants([first], GPUS, two) == [], "it begins with what it asked for"
    rigid = resized("a", 4, gpus={"initial": 4})
    assert grants([rigid], GPUS, two) == [], "its number does not change"
    three = {f"cpu-{n}": 100 for n in range(3)}
    asked = [resized("a", 2, cpu_slots=2)]
    assert [len(shares) for _, shares in grants(asked, SLOTS, three)] == [2]


def test_tasks_without_devices_pass() -> None:
    asked = [task("big", gpus=4), task("none", gpus=0)]
    assert grants(asked, GPUS, {"GPU-0": 0}) == [("none", [])]


def test_cpu_slots_multiply() -> None:
    assert grants([task("a", gpus=1, cpu_slots=3)], SLOTS) == [
        ("a", [("cpu-0", 100), ("cpu-1", 100), ("cpu-2", 100)])
    ]


def test_fractions_fill_a_begun_device_first_and_reserve_what_was_declared() -> None:
    asked = [task(name, gpu_fraction=0.5) for name in ("a", "b", "c")]
    free = {"GPU-0": 100, "GPU-1": 50, "GPU-2": 40, "GPU-3": 0}
    assert grants(asked, GPUS, free) == [
        ("a", [("GPU-1", 50)]),
        ("b", [("GPU-0", 50)]),
        ("c", [("GPU-0", 50)]),
    ]


def boxed(*groups: tuple[int, ...]) -> list[Device]:
    return [
        replace(GPUS[0], id=f"GPU-{n}", index=n, groups=(*path, n)) for n, path in enumerate(groups)
    ]


EIGHT = boxed(*((n // 4, n // 2) for n in range(8)))
"""Two NUMA nodes of two linked pairs each."""


def eight(left: dict[int, int]) -> dict[str, int]:
    """What is free of each of them, save for these all."""
    return {f"GPU-{n}": left.get(n, 100) for n in range(8)}


def places(gpus: int, *taken: int) -> list[int]:
    """Numbers of the devices that a task gets where these are taken."""
    ((_, shares),) = grants([task("a", gpus=gpus)], EIGHT, eight(dict.fromkeys(taken, 0)))
    return sorted(int(device[4:]) for device, _ in shares)


def test_the_best_connected_devices_are_given_and_groups_are_kept_whole() -> None:
    assert places(1, 0) == [1], "the other one of a pair that is begun"
    assert places(1, 4, 5) == [6], "of the node that is begun, where all pairs are whole"
    assert places(2, 0) == [2, 3]
    assert places(2, 0, 2, 5) == [6, 7], "a pair, rather than two of one node"
    assert places(2, 0, 2, 4, 6) == [1, 3], "one node, where there is no pair"
    assert places(3, 0) == [1, 2, 3]
    assert places(4, 1) == [4, 5, 6, 7]
    assert places(4, 0, 4, 5) == [1, 2, 3, 6], "as few nodes as can be"


def test_parts_of_devices_go_where_devices_are_begun() -> None:
    small = task("a", gpu_fraction=0.5)
    assert grants([small], EIGHT, eight({0: 0})) == [("a", [("GPU-1", 50)])]
    assert grants([small], EIGHT, eight({0: 0, 6: 50})) == [("a", [("GPU-6", 50)])]
    two = task("a", gpus=2, gpu_fraction=0.5)
    free = eight({0: 0, 1: 0, 6: 50})
    assert grants([two], EIGHT, free) == [("a", [("GPU-6", 50), ("GPU-7", 50)])]


@given(st.sets(st.integers(0, 7)), st.integers(1, 8))
def test_nobody_is_on_more_groups_than_it_needs(taken: set[int], gpus: int) -> None:
    if len(taken) + gpus > 8:
        return
    found = places(gpus, *taken)
    assert len(set(found) - taken) == gpus
    free = [sum(n // 4 == node and n not in taken for n in range(8)) for node in range(2)]
    assert len({n // 4 for n in found}) == (1 if max(free) >= gpus else 2)


RUNNING = (
    Holding("r", (DeviceShare("GPU-2"),), 100.0),
    Holding("s", (DeviceShare("GPU-3"),), 900.0),
)
"""Two of four devices are held; the third is free in 100 s."""

HALF = {"GPU-0": 100, "GPU-1": 100}


def test_others_pass_one_that_waits_where_that_costs_it_nothing() -> None:
    big = task("big", gpus=3)
    short, long = task("short", timeout_s=100), task("long", timeout_s=101)
    unknown = task("unknown")
    assert grants([big, unknown, long, short], GPUS, HALF, holdings=RUNNING) == [
        ("short", [("GPU-0", 100)])
    ]
    devices = [*GPUS[:3], replace(GPUS[3], name="L4")]
    big = task("big", gpus=3, requires={"gpu_type": "H100"})
    free = {**HALF, "GPU-3": 100}
    assert grants([big, unknown], devices, free, holdings=RUNNING[:1]) == [
        ("unknown", [("GPU-3", 100)])
    ]


def test_nobody_passes_one_whose_start_is_not_known_or_late() -> None:
    asked = [task("big", gpus=3), task("short", timeout_s=1)]
    unknown = (Holding("r", (DeviceShare("GPU-2"),)),)
    assert grants(asked, GPUS, HALF, holdings=unknown) == []
    assert grants(asked, GPUS, HALF, holdings=RUNNING)
    assert grants(asked, GPUS, HALF, holdings=RUNNING, is_late=lambda task, in_s: True) == []


def test_what_learns_fills_no_hole_that_somebody_waits_for() -> None:
    learns = task("learns", priority=LEARNING_PRIORITY, timeout_s=1)
    assert grants([task("big", gpus=3), learns], GPUS, HALF, holdings=RUNNING) == []
    assert grants([task("big", gpus=3), learns], GPUS, HALF) == []


@given(st.data())
def test_whoever_waits_first_starts_no_later_for_those_who_pass(data: st.DataObject) -> None:
    """Runs that take as long as they were expected to, on four devices, until all have started."""
    drawn = st.tuples(st.integers(1, 4), st.integers(1, 50))
    sizes = data.draw(st.lists(drawn, min_size=1, max_size=8))
    waiting = [
        task(str(n), order=n, gpus=gpus, timeout_s=seconds)
        for n, (gpus, seconds) in enumerate(sizes)
    ]
    running: list[tuple[float, Holding]] = []  # when it ends
    now, promised = 0.0, {}
    while waiting:
        running = [(end, held) for end, held in running if end > now]
        taken = {share.device for _, held in running for share in held.shares}
        scene = Scene(
            lambda t: RunConfig.model_validate(t.spec.config),
            lambda _: GPUS,
            {device.id: 0 if device.id in taken else 100 for device in GPUS},
            "nvidia",
            [replace(held, left_s=end - now) for end, held in running],
        )
        for grant in plan(Ranking(waiting, lambda _: 0.0), scene).grants:
            waiting.remove(grant.task)
            seconds = sizes[int(grant.task.run_id)][1]
            running.append((now + seconds, Holding(grant.task.run_id, grant.shares)))
            assert now <= promised.get(grant.task.run_id, now)
            taken |= {share.device for share in grant.shares}
        assert len(taken) == sum(len(held.shares) for _, held in running)
        if waiting:
            left = [replace(held, left_s=end - now) for end, held in running]
            free = {device.id: 100 for device in GPUS if device.id not in taken}
            first = waiting[0]
            found = earliest(scene.wants(first), [d.id for d in GPUS], free, left)
            promised.setdefault(first.run_id, now + found.in_s)
            now = min(end for end, _ in running)


def test_requirements_choose_among_devices() -> None:
    small = Device("GPU-9", "nvidia", 9, "L4", 24_000_000_000)
    asked = [task("a", requires={"memory_gb": 40}), task("b", requires={"gpu_type": "l4"})]
    assert grants(asked, [small, GPUS[0]]) == [("a", [("GPU-0", 100)]), ("b", [("GPU-9", 100)])]


@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0.1, 0.25, 0.5, 1.0])), max_size=12),
    st.lists(st.integers(0, 100), min_size=4, max_size=4),
)
def test_no_device_is_granted_beyond_what_is_free(
    asked: list[tuple[int, float]], free: list[int]
) -> None:
    tasks = [task(str(i), gpus=n, gpu_fraction=f) for i, (n, f) in enumerate(asked)]
    offered = {device.id: amount for device, amount in zip(GPUS, free, strict=True)}
    left = dict(offered)
    for run_id, shares in grants(tasks, GPUS, offered):
        count, fraction = asked[int(run_id)]
        assert len(shares) == count == len({device for device, _ in shares})
        for device, amount in shares:
            assert amount == round(100 * fraction)
            left[device] -= amount
    assert all(amount >= 0 for amount in left.values())


def test_who_learns_presses_nobody() -> None:
    learns = task("learns", priority=LEARNING_PRIORITY)
    waits, works = task("waits", priority=-1_000_000), task("works")

    def config(waiting: Task) -> RunConfig:
        return RunConfig.model_validate(waiting.spec.config)

    assert pressure([waits, works, learns], config, 4) == 0.5
    assert pressure([], config, 0) == 0


def test_nobody_ranks_below_a_task_that_learns() -> None:
    lowest = RunConfig.model_fields["priority"].metadata[0].ge
    assert lowest > LEARNING_PRIORITY


def test_nobody_holds_more_than_the_quota_nor_holds_others_up_for_it() -> None:
    capped = {"quotas": {"ada": 2}}
    asked = [task(name, n, gpus=1, **capped) for n, name in enumerate("abc")]
    other = task("x", 9, gpus=2)
    other = replace(other, spec=replace(other.spec, user="ben"))
    assert [name for name, _ in grants([*asked, other], GPUS)] == ["a", "x", "b"]
    big = task("d", gpus=3, **capped)
    assert grants([big], GPUS) == []
    assert [name for name, _ in grants([big, task("e", 1, gpus=2)], GPUS)] == ["e"]


def test_a_run_that_is_resized_gets_what_the_quota_leaves() -> None:
    elastic = task("a", gpus={"initial": 1, "min": 1, "max": 4}, quotas={"ada": 2})
    resized = replace(elastic, exit_reason="resized", gpus=4)
    assert grants([resized], GPUS) == [("a", [("GPU-0", 100), ("GPU-1", 100)])]
