"""Every rule of the guard, by hand: what is left of a proposal, and the words that say why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mlflow_rlsched.policy.action import Action, Setting
from mlflow_rlsched.policy.guard import RULES, guard
from mlflow_rlsched.policy.history import History, Memory
from mlflow_rlsched.policy.interval import Budget, DeviceUse
from mlflow_rlsched.policy.limits import Limits
from tests.policy.builders import ALL, interval, proposal, report, reports

GB = 1e9
LIVE = Limits(gpus_min=1, gpus_max=4, gpus_are_live=True, batch_initial=64, optimizer="sgd")
LATE = History(progress=0.1)  # of 100 s so far: 900 s are left


def one(vetoes: tuple[str, ...]) -> str:
    assert len(vetoes) == 1, vetoes
    return vetoes[0]


def test_the_rules_are_in_the_documented_order() -> None:
    assert [rule.__name__ for rule in RULES] == [
        "within_configuration",
        "within_abilities",
        "within_share",
        "within_memory",
        "worth_a_restart",
        "calm_before_growth",
        "no_last_batch_of_one",
        "above_the_noise",
    ]


def test_what_is_allowed_goes_through() -> None:
    outcome = guard(
        proposal(gain=0.5, gpu_delta=1, batch_factor=1.1, lr_factor=0.9), interval(), LATE, LIVE
    )
    assert outcome.vetoes == ()
    assert outcome.setting == Setting(2, 70, 0.9, pytest.approx(0.9 * 70 / 64))
    assert outcome.action == Action(1, pytest.approx(70 / 64), pytest.approx(0.9))


# Bounds of the configuration


@pytest.mark.parametrize(("factor", "size"), [(1.2, 70), (0.8, 60)])
def test_a_batch_stays_inside_its_bounds(factor: float, size: int) -> None:
    limits = Limits(batch_initial=64, batch_min=60, batch_max=70)
    outcome = guard(proposal(batch_factor=factor), interval(), History(), limits)
    assert outcome.setting.batch_size == size
    assert f"allowed is {size}" in one(outcome.vetoes)


def test_a_batch_at_its_bound_stays() -> None:
    limits = Limits(batch_initial=64, batch_max=64)
    outcome = guard(proposal(batch_factor=1.2), interval(), History(), limits)
    assert outcome.setting.batch_size == 64
    assert one(outcome.vetoes) == "the batch stays at 64: the largest allowed is 64"


def test_a_batch_has_a_sample_for_each_device() -> None:
    small = interval(setting=Setting(4, 5))
    outcome = guard(proposal(batch_factor=0.8), small, History(), LIVE)
    assert outcome.setting.batch_size == 4
    assert (
        guard(
            proposal(batch_factor=0.8), interval(setting=outcome.setting), History(), LIVE
        ).setting.batch_size
        == 4
    )


@pytest.mark.parametrize(
    ("held", "delta", "left", "bound"), [(3, 2, 4, "gpus.max"), (2, -2, 1, "gpus.min")]
)
def test_devices_stay_inside_their_bounds(held: int, delta: int, left: int, bound: str) -> None:
    outcome = guard(
        proposal(gain=1.0, gpu_delta=delta), interval(setting=Setting(held, 64)), LATE, LIVE
    )
    assert outcome.setting.gpus == left
    assert bound in one(outcome.vetoes)


@pytest.mark.parametrize(("factor", "scale"), [(1.2, 1.1), (0.8, 0.9)])
def test_the_learning_rate_stays_inside_its_bounds(factor: float, scale: float) -> None:
    limits = Limits(batch_initial=64, lr_scale_min=0.9, lr_scale_max=1.1)
    outcome = guard(proposal(lr_factor=factor), interval(), History(), limits)
    assert outcome.setting.lr_scale == scale
    assert "that is allowed" in one(outcome.vetoes)


def test_the_bound_of_the_rate_holds_for_the_batch_rule_too() -> None:
    limits = Limits(batch_initial=64, optimizer="sgd", lr_scale_max=1.1)
    outcome = guard(proposal(batch_factor=1.2), interval(), History(), limits)
    assert outcome.setting.batch_size == 77
    assert outcome.setting.lr_scale == 1.1
    assert outcome.setting.lr_factor == pytest.approx(1.1 * 64 / 77)


# What the training can do


def test_devices_stay_while_counts_cannot_change() -> None:
    limits = Limits(gpus_min=1, gpus_max=4, batch_initial=64)
    held = interval(setting=Setting(2, 64))
    outcome = guard(proposal(gpu_delta=-1), held, LATE, limits)
    assert outcome.setting.gpus == 2
    assert one(outcome.vetoes) == (
        "the number of devices stays at 2: it cannot change while a run is going on"
    )


@pytest.mark.parametrize(
    ("missing", "action", "words"),
    [
        ("resume", {"gpu_delta": 1}, "cannot resume"),
        ("batch_size", {"batch_factor": 1.2}, "cannot change its batch size"),
        ("learning_rate", {"lr_factor": 1.2}, "does not let its learning rate be changed"),
    ],
)
def test_nothing_is_asked_of_a_training_that_it_cannot_do(
    missing: str, action: dict[str, Any], words: str
) -> None:
    able = interval(can=ALL - {missing})
    outcome = guard(proposal(gain=1.0, **action), able, LATE, LIVE)
    assert outcome.setting == able.setting
    assert words in one(outcome.vetoes)


def test_the_scale_stays_where_the_rate_cannot_be_changed() -> None:
    outcome = guard(
        proposal(batch_factor=1.2), interval(can=frozenset({"batch_size"})), History(), LIVE
    )
    assert outcome.setting == Setting(1, 77, 1.0, 1.0)


def test_nothing_changes_until_the_last_change_is_applied() -> None:
    late = interval(acknowledged=False)
    outcome = guard(proposal(batch_factor=1.2, lr_factor=0.8), late, LATE, LIVE)
    assert outcome.setting == late.setting
    assert len(outcome.vetoes) == 2
    assert all("not yet applied" in veto for veto in outcome.vetoes)


# Shares and quotas


@pytest.mark.parametrize(
    ("held", "wanted", "budget", "gpus"),
    [(1, 2, 2, 2), (1, 2, 1, 1), (2, 0, 1, 1), (3, 1, 1, 1), (2, 0, 0, 1), (2, -1, 2, 1)],
)
def test_a_run_keeps_within_what_the_pool_gives(
    held: int, wanted: int, budget: int, gpus: int
) -> None:
    given = Budget(budget, "the pool gives less")
    now = interval(setting=Setting(held, 64), budget=given)
    outcome = guard(proposal(gain=1.0, gpu_delta=wanted), now, LATE, LIVE)
    assert outcome.setting.gpus == gpus
    assert any("the pool gives less" in veto for veto in outcome.vetoes) == (held + wanted > gpus)


def test_what_the_pool_wants_back_has_to_be_worth_a_restart_and_possible() -> None:
    given = Budget(1, "the pool gives less")
    ends = replace(LATE, progress=0.99)
    now = interval(setting=Setting(2, 64), budget=given)
    assert guard(proposal(), now, ends, LIVE).setting.gpus == 2
    cannot = replace(now, can=frozenset())
    assert guard(proposal(), cannot, LATE, LIVE).setting.gpus == 2


@pytest.mark.parametrize(("free", "gpus"), [(0, 1), (1, 2), (2, 3), (None, 3), (-1, 1)])
def test_a_run_takes_no_more_devices_than_are_free_for_it(free: int | None, gpus: int) -> None:
    outcome = guard(proposal(gain=1.0, gpu_delta=2), interval(free_gpus=free), LATE, LIVE)
    assert outcome.setting.gpus == gpus
    assert bool(outcome.vetoes) == (gpus != 3)


# Memory

FULL = History(
    memory=(Memory(48, 10 * GB), Memory(64, 12 * GB)),
    memory_base=4 * GB,
    memory_total=16 * GB,
    progress=0.1,
)


def test_a_batch_that_would_need_too_much_memory_is_clipped() -> None:
    # 0.125 GB a sample: 0.92 x 14 - 12 = 0.88 GB are left, for 7 samples
    small = replace(FULL, memory_total=14 * GB)
    outcome = guard(proposal(batch_factor=1.2), interval(), small, LIVE)
    assert outcome.setting.batch_size == 71
    assert one(outcome.vetoes) == (
        "the batch becomes 71, not 77: 77 would need about 13.6 GB of 14.0 GB, more than 92%"
    )
    # 0.92 x 16 - 12 = 2.72 GB are left, for 21 samples
    outcome = guard(proposal(batch_factor=1.2), interval(), FULL, LIVE)
    assert outcome.setting.batch_size == 77


def test_a_cap_counts_like_a_device() -> None:
    limits = Limits(batch_initial=64, memory_cap_bytes=13 * GB)
    outcome = guard(proposal(batch_factor=1.2), interval(), FULL, limits)
    assert outcome.setting.batch_size == 64
    assert "13.0 GB" in one(outcome.vetoes)


def test_what_else_is_in_use_on_the_device_counts() -> None:
    device = DeviceUse(memory_used=13.5 * GB)
    outcome = guard(proposal(batch_factor=1.2), interval(devices=[device]), FULL, LIVE)
    assert outcome.setting.batch_size == 73  # 0.92 x 16 - 13.5 = 1.22 GB: 9 samples


def test_without_a_measured_slope_all_memory_is_taken_to_grow() -> None:
    once = History(memory=(Memory(64, 12 * GB),), memory_base=12 * GB, memory_total=14 * GB)
    outcome = guard(proposal(batch_factor=1.2), interval(), once, LIVE)
    assert outcome.setting.batch_size == 68  # 0.92 x 14 / 12 x 64


def test_a_running_batch_is_not_made_smaller_by_a_prediction() -> None:
    device = DeviceUse(memory_used=15 * GB)
    outcome = guard(proposal(), interval(devices=[device]), FULL, LIVE)
    assert outcome.setting.batch_size == 64
    assert outcome.vetoes == ()


def test_a_batch_stays_below_the_size_at_which_memory_ran_out() -> None:
    burnt = History(oom_batch=70)
    outcome = guard(proposal(batch_factor=1.2), interval(), burnt, LIVE)
    assert outcome.setting.batch_size == 59  # 15 % less
    assert one(outcome.vetoes) == "the batch becomes 59, not 77: memory ran out at 70"


def test_a_batch_grows_only_as_far_as_memory_that_varies_will_fit() -> None:
    # 15.2 of 20 GB for 64 samples, 0.2 GB each, and 10 % from one interval to the next.
    varies = History(
        memory=(Memory(32, 8.8 * GB), Memory(64, 15.2 * GB)),
        memory_total=20 * GB,
        memory_noise=0.1,
    )
    outcome = guard(proposal(batch_factor=1.2), interval(), varies, LIVE)
    assert outcome.setting.batch_size == 71  # 16.6 GB; a fifth more is 19.9
    assert "and that varies" in one(outcome.vetoes)


def test_fewer_devices_must_hold_the_batch() -> None:
    held = interval(setting=Setting(2, 128))
    outcome = guard(proposal(gpu_delta=-1), held, FULL, LIVE)
    assert outcome.setting == Setting(2, 128, 1.0, 2.0)
    # 12 GB, and 39 samples more of 0.125 GB: a decision takes no more than a fifth off the batch
    assert one(outcome.vetoes) == (
        "the number of devices stays at 2: on 1, 103 would need about 16.9 GB of 16.0 GB,"
        " more than 92%"
    )
    roomy = replace(FULL, memory_total=22 * GB)  # 0.92 x 22 = 20.24
    assert guard(proposal(gpu_delta=-1), held, roomy, LIVE).setting.gpus == 1


def test_as_many_devices_are_given_back_as_can_be_spared() -> None:
    held = interval(setting=Setting(4, 256))
    # 68.3 samples a device would need 12.54 GB of 14.72
    outcome = guard(proposal(gpu_delta=-2), held, FULL, LIVE)
    assert outcome.setting.gpus == 3
    assert "becomes 3, not 2: on 2, 205 would need about 16.8 GB" in one(outcome.vetoes)


@pytest.mark.parametrize(("factor", "batch"), [(0.8, 102), (1.0, 107), (1.2, 107)])
def test_devices_go_together_with_what_their_memory_held_of_the_batch(
    factor: float, batch: int
) -> None:
    # 107 samples need 17.4 GB of 17.48, and 128 would need 20 GB.
    held = interval(setting=Setting(2, 128))
    roomy = replace(FULL, memory_total=19 * GB)
    outcome = guard(proposal(gpu_delta=-1, batch_factor=factor), held, roomy, LIVE)
    assert (outcome.setting.gpus, outcome.setting.batch_size) == (1, batch)


def test_devices_stay_where_the_batch_cannot_shrink_with_them() -> None:
    roomy = replace(FULL, memory_total=19 * GB)
    for cannot in ({"can": ALL - {"batch_size"}}, {"acknowledged": False}):
        held = interval(setting=Setting(2, 128), **cannot)
        assert guard(proposal(gpu_delta=-1), held, roomy, LIVE).setting == Setting(2, 128, 1.0, 2.0)


def test_devices_stay_where_memory_ran_out_with_more_samples_each() -> None:
    held = interval(setting=Setting(2, 128), can=ALL - {"batch_size"})
    burnt = History(oom_batch=120)
    outcome = guard(proposal(gpu_delta=-1), held, burnt, LIVE)
    assert outcome.setting.gpus == 2
    assert one(outcome.vetoes) == ("the number of devices stays at 2: on 1, memory ran out at 120")
    assert guard(proposal(gpu_delta=-1), held, History(oom_batch=151), LIVE).setting.gpus == 1


def test_a_batch_fits_on_the_devices_that_are_left() -> None:
    held = interval(setting=Setting(2, 128))
    small = replace(FULL, memory_total=13.5 * GB)  # 67 samples a device
    both = proposal(gain=0.9, gpu_delta=2, batch_factor=1.2)
    assert guard(both, held, small, LIVE).setting.batch_size == 154  # on four devices
    unknown = replace(small, progress=None)
    outcome = guard(both, held, unknown, LIVE)
    assert (outcome.setting.gpus, outcome.setting.batch_size) == (2, 134)
    devices, batch = outcome.vetoes
    assert "stays at 2: it is not known whether the change would pay" in devices
    assert "the batch becomes 134, not 154: 154 would need about 13.6 GB" in batch


def test_what_was_only_needed_by_more_devices_is_taken_back_with_them() -> None:
    # Two devices need two samples at least, of 10 GB each.
    heavy = replace(FULL, memory=(Memory(1, 12 * GB),), memory_base=2 * GB)
    held = interval(setting=Setting(1, 1))
    grown = guard(proposal(gain=0.9, gpu_delta=1), held, heavy, LIVE).setting
    assert (grown.gpus, grown.batch_size) == (2, 2)
    kept = guard(proposal(gain=-0.9, gpu_delta=1), held, heavy, LIVE).setting
    assert (kept.gpus, kept.batch_size) == (1, 1)


@given(
    gpus=st.integers(1, 4),
    each=st.floats(1, 100),
    delta=st.integers(-2, 2),
    factor=st.floats(0.8, 1.2),
    gain=st.floats(-1, 1) | st.none(),
    progress=st.floats(0.05, 0.95) | st.none(),
    noise=st.floats(0, 0.2) | st.none(),
    limit=st.floats(5, 40),
    oom=st.floats(2, 200) | st.none(),
    dataset=st.integers(300, 400),
    can=st.sampled_from([ALL, ALL - {"batch_size"}]),
)
@example(1, 1.0, 1, 1.0, 1.0, 0.5, None, 5.0, 2.0, 311, ALL)
@example(1, 4.0, 1, 1.0, 1.0, 0.5, None, 5.0, 2.0, 311, ALL)
def test_no_device_gets_more_samples_than_it_holds(
    gpus: int,
    each: float,
    delta: int,
    factor: float,
    gain: float | None,
    progress: float | None,
    noise: float | None,
    limit: float,
    oom: float | None,
    dataset: int,
    can: frozenset[str],
) -> None:
    before = Setting(gpus, round(gpus * each))
    assert before.batch_size is not None
    running = before.batch_size / gpus
    history = History(  # 4 GB, and 0.1 GB a sample
        memory=(Memory(running, (4 + 0.1 * running) * GB),),
        memory_base=4 * GB,
        memory_total=limit * GB,
        oom_batch=oom,
        progress=progress,
        throughput_noise=noise,
    )
    limits = replace(LIVE, dataset_size=dataset, drop_last=False)
    action = {"gpu_delta": delta, "batch_factor": factor}
    seen = interval(setting=before, can=can)
    after = guard(proposal(gain=gain, **action), seen, history, limits).setting
    assert after.batch_size is not None
    now = after.batch_size / after.gpus
    assert now >= 1
    assert now <= running or (4 + 0.1 * now) <= 0.92 * limit + 1e-6
    if oom is not None:
        assert now < oom or (after.batch_size == before.batch_size and now <= running)


# A change must pay for its restart


@pytest.mark.parametrize(
    ("gain", "progress", "gpus"),
    [
        (0.5, 0.1, 2),  # saves 900 x 0.5 / 1.5 = 300 s
        (0.02, 0.1, 1),  # saves 18 s
        (0.5, 0.6, 1),  # 67 s are left: saves 22 s
        (None, 0.1, 1),
        (-0.5, 0.1, 1),
        (0.5, None, 1),
    ],
)
def test_more_devices_must_pay_for_the_restart(
    gain: float | None, progress: float | None, gpus: int
) -> None:
    history = History(progress=progress)
    outcome = guard(proposal(gain=gain, gpu_delta=1), interval(), history, LIVE)
    assert outcome.setting.gpus == gpus
    assert bool(outcome.vetoes) == (gpus == 1)


@pytest.mark.parametrize(("progress", "gpus"), [(0.1, 1), (None, 1), (0.9, 2)])
def test_devices_are_given_back_unless_the_run_is_about_to_end(
    progress: float | None, gpus: int
) -> None:
    history = History(progress=progress)
    held = interval(setting=Setting(2, 64))
    assert guard(proposal(gpu_delta=-1), held, history, LIVE).setting.gpus == gpus


@pytest.mark.parametrize("last", [1, -1])
@pytest.mark.parametrize(("delta", "gain"), [(1, 0.5), (-1, None), (-1, -0.1)])
@pytest.mark.parametrize("elapsed", [399.0, 400.0])
def test_a_change_of_devices_is_not_taken_back_at_once(
    last: int, delta: int, gain: float | None, elapsed: float
) -> None:
    history = History(progress=0.1, gpus_changed_at=100.0, gpus_change=last)  # restarts take 30 s
    held = interval(setting=Setting(2, 64), elapsed_s=elapsed)
    outcome = guard(proposal(gain=gain, gpu_delta=delta), held, history, LIVE)
    stays = last != delta and elapsed < 400
    assert outcome.setting.gpus == (2 if stays else 2 + delta)
    assert any("another 1 s" in veto for veto in outcome.vetoes) == stays


@pytest.mark.parametrize(("gain", "gpus"), [(0.02, 2), (0.5, 1)])
def test_devices_that_cost_speed_are_given_back_sooner_where_that_pays(
    gain: float, gpus: int
) -> None:
    # 110 s, a tenth of the run: 2 % of the 990 s that are left are 19 s, a half 330 s.
    history = History(progress=0.1, gpus_changed_at=100.0, gpus_change=1)
    held = interval(setting=Setting(2, 64), elapsed_s=110.0)
    assert guard(proposal(gain=gain, gpu_delta=-1), held, history, LIVE).setting.gpus == gpus


@pytest.mark.parametrize(
    ("gain", "progress", "elapsed", "gpus"),
    [
        (-0.4, 0.1, 20.0, 1),  # 2 x 180 s held, or 180 / 0.6 + 30 = 330 s: less
        (-0.5, 0.1, 20.0, 2),  # 180 / 0.5 + 30 = 390 s: more
        (-0.1, None, 30.0, 2),  # for another 30 s: 2 x 30 s, or 33 + 30 s
        (-0.1, None, 40.0, 1),  # 2 x 40 s, or 44 + 30 s
        (None, None, 30.0, 1),
    ],
)
def test_fewer_devices_must_take_less_device_time_their_restart_included(
    gain: float | None, progress: float | None, elapsed: float, gpus: int
) -> None:
    held = interval(setting=Setting(2, 64), elapsed_s=elapsed)
    outcome = guard(proposal(gain=gain, gpu_delta=-1), held, History(progress=progress), LIVE)
    assert outcome.setting.gpus == gpus
    assert any("save no device time" in veto for veto in outcome.vetoes) == (gpus == 2)


# No growth while the loss is not calm


@pytest.mark.parametrize("action", [{"gpu_delta": 1}, {"batch_factor": 1.2}, {"lr_factor": 1.2}])
def test_nothing_grows_on_a_loss_that_is_not_finite(action: dict[str, Any]) -> None:
    bad = interval(reports=[report(nonfinite=frozenset({"loss"}))])
    outcome = guard(proposal(gain=1.0, **action), bad, LATE, LIVE)
    assert outcome.setting == bad.setting
    assert "not finite" in one(outcome.vetoes)


@pytest.mark.parametrize("action", [{"batch_factor": 0.8}, {"lr_factor": 0.8}])
def test_what_shrinks_may_shrink(action: dict[str, Any]) -> None:
    bad = interval(reports=[report(nonfinite=frozenset({"loss"}))])
    outcome = guard(proposal(**action), bad, LATE, LIVE)
    assert outcome.setting != bad.setting
    assert outcome.vetoes == ()


def test_nothing_grows_while_the_loss_oscillates() -> None:
    losses = tuple((float(i), 1.0 + (-1) ** i) for i in range(12))
    shaky = History(losses=losses, loss_first=2.0, loss_best=0.9, spread_usual=0.05)
    outcome = guard(proposal(lr_factor=1.2), interval(), shaky, LIVE)
    assert outcome.setting.lr_factor == 1
    assert "oscillates" in one(outcome.vetoes)


# A last batch of one

UNEVEN = {"batch_initial": 64, "dataset_size": 771, "drop_last": False}  # 10 x 77 + 1


def test_a_batch_never_leaves_a_last_batch_of_one() -> None:
    outcome = guard(proposal(batch_factor=1.2), interval(), History(), Limits(**UNEVEN))
    assert outcome.setting.batch_size == 76
    assert one(outcome.vetoes) == ("the batch becomes 76, not 77: 77 would leave a last batch of 1")


@pytest.mark.parametrize(
    "changes", [{"drop_last": True}, {"drop_last": None}, {"dataset_size": None}]
)
def test_where_none_is_left_or_known_any_batch_will_do(changes: dict[str, Any]) -> None:
    limits = Limits(**{**UNEVEN, **changes})
    assert guard(proposal(batch_factor=1.2), interval(), History(), limits).setting.batch_size == 77


def test_no_device_gets_one_sample() -> None:
    # 770 % 64 = 2: a sample for each of two devices
    limits = Limits(gpus_max=2, batch_initial=60, dataset_size=770, drop_last=False)
    held = interval(setting=Setting(2, 58))
    outcome = guard(proposal(batch_factor=1.1), held, History(), limits)
    assert outcome.setting.batch_size == 63


def test_where_no_other_size_is_allowed_the_batch_stays() -> None:
    limits = Limits(batch_initial=2, batch_max=3, dataset_size=4, drop_last=False)
    held = interval(setting=Setting(1, 2))
    outcome = guard(proposal(batch_factor=1.2), held, History(), limits)
    assert outcome.setting.batch_size == 2
    assert "last batch of 1" in one(outcome.vetoes)


# Changes under the noise


@pytest.mark.parametrize(
    "action", [{"batch_factor": 1.01}, {"lr_factor": 1.01}, {"lr_factor": 0.99}]
)
def test_a_change_under_the_noise_is_none(action: dict[str, Any]) -> None:
    outcome = guard(proposal(**action), interval(), History(), LIVE)
    assert outcome.setting == interval().setting
    assert "under the noise" in one(outcome.vetoes)


def test_one_sample_of_a_small_batch_is_above_the_noise() -> None:
    small = interval(setting=Setting(1, 8))
    assert guard(proposal(batch_factor=1.01), small, History(), LIVE).setting.batch_size == 9


@pytest.mark.parametrize(("gain", "batch"), [(0.05, 64), (0.2, 77), (None, 77)])
def test_a_gain_under_the_noise_of_the_throughput_is_none(gain: float | None, batch: int) -> None:
    noisy = History(throughput_noise=0.05)
    outcome = guard(proposal(gain=gain, batch_factor=1.2), interval(), noisy, LIVE)
    assert outcome.setting.batch_size == batch


def test_reports_do_not_matter_to_a_calm_run() -> None:
    calm = interval(reports=reports([1.0] * 5))
    assert guard(proposal(lr_factor=1.2), calm, History(), LIVE).vetoes == ()
