from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from mlflow_rlsched.policy import goodput
from mlflow_rlsched.policy.goodput import (
    PARAMETERS,
    SLOTS,
    Situation,
    Timings,
    advise,
    assumed,
    fit,
    fit_error,
    gain,
    step_seconds,
)

# ResNet-50 on ImageNet and BERT on SQuAD, fitted to the measurements of Pollux (Qiao et al. 2021).
IMAGENET = np.log([0.0642, 0.00448, 0.2995, 0.00664, 0.0265, 5.2e-5, 2.47])
BERT = np.log([0.172, 0.0586, 1.386, 0.0094, 0.284, 0.0096, 1.90])
PER_NODE = 4


def by_hand(parameters: np.ndarray, gpus: float, batch: float, per_node: float) -> float:
    alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r, gamma = np.exp(parameters)
    gradients = alpha_c + beta_c * batch / gpus
    if gpus == 1:
        return float(gradients)
    alpha, beta = (alpha_n, beta_n) if gpus > per_node else (alpha_r, beta_r)
    sync = alpha + beta * max(gpus - 2, 0)
    return float((gradients**gamma + sync**gamma) ** (1 / gamma))


def measured(
    truth: np.ndarray, gpus: list[int], batches: list[int], noise: float = 0.0, seed: int = 0
) -> Timings:
    random = np.random.default_rng(seed)
    timings = Timings.none(1)
    for k, b in zip(gpus, batches, strict=True):
        seconds = by_hand(truth, k, b, PER_NODE) * np.exp(random.normal(0, noise))
        timings.add(np.array([0]), np.array([float(k)]), np.array([float(b)]), np.array([seconds]))
    return timings


GPUS = [1, 1, 2, 4, 2, 8, 16, 4, 8, 12]
BATCHES = [100, 200, 200, 200, 400, 400, 800, 800, 1200, 1600]


@pytest.mark.parametrize("truth", [IMAGENET, BERT])
@pytest.mark.parametrize(("gpus", "batch"), [(1, 64), (2, 64), (4, 500), (5, 500), (16, 4000)])
def test_the_step_time_is_the_published_one(truth: np.ndarray, gpus: int, batch: int) -> None:
    found = step_seconds(truth[None], np.array([[float(gpus)]]), np.array([[float(batch)]]), 4)
    assert found[0, 0] == pytest.approx(by_hand(truth, gpus, batch, 4))


@pytest.mark.parametrize("truth", [IMAGENET, BERT])
def test_the_derivatives_are_those_of_the_step_time(truth: np.ndarray) -> None:
    gpus, batch = np.array([[1.0, 2, 3, 8]]), np.array([[50.0, 200, 300, 900]])
    _, slopes = goodput._log_seconds(truth[None], gpus, batch, PER_NODE, slopes=True)
    for number in range(len(PARAMETERS)):
        change = np.zeros(7)
        change[number] = 1e-6
        up, down = (
            np.log(step_seconds((truth + sign * change)[None], gpus, batch, PER_NODE))
            for sign in (1, -1)
        )
        assert slopes[0, :, number] == pytest.approx((up - down)[0] / 2e-6, abs=1e-5)


@pytest.mark.parametrize("truth", [IMAGENET, BERT])
def test_a_fit_predicts_what_it_has_not_seen(truth: np.ndarray) -> None:
    timings = measured(truth, GPUS, BATCHES, noise=0.03)
    found = fit(assumed(timings), timings, PER_NODE, iterations=20)
    assert fit_error(found, timings, PER_NODE)[0] < 0.05
    for gpus, batch in [(1, 150), (2, 300), (4, 1000), (8, 2000), (16, 2000)]:
        told = step_seconds(found, np.array([[float(gpus)]]), np.array([[float(batch)]]), PER_NODE)
        assert told[0, 0] == pytest.approx(by_hand(truth, gpus, batch, PER_NODE), rel=0.12)


def test_the_fit_is_the_likeliest_one() -> None:
    timings = measured(IMAGENET, GPUS, BATCHES, noise=0.03)
    prior, known = assumed(timings)[0], timings.count[0] > 0

    def cost(parameters: np.ndarray) -> float:
        told = step_seconds(parameters[None], timings.gpus, timings.batch, PER_NODE)[0]
        errors = np.log(timings.seconds[0] / told)[known]
        assumptions = (parameters - prior) / goodput._UNSURE
        return float((errors**2).sum() / goodput.NOISE**2 + (assumptions**2).sum())

    found = fit(assumed(timings), timings, PER_NODE, iterations=60)[0]
    bounds = [(None, None)] * 6 + [(0, np.log(10))]
    best = minimize(cost, found, method="L-BFGS-B", bounds=bounds)
    assert cost(found) == pytest.approx(best.fun, rel=1e-3)


def test_one_measurement_is_fitted_and_moves_nothing_else() -> None:
    timings = measured(BERT, [2], [24])
    found = fit(assumed(timings), timings, PER_NODE, iterations=20)
    assert fit_error(found, timings, PER_NODE)[0] < 0.05
    assert found[0, 2:4] == pytest.approx(assumed(timings)[0, 2:4])  # several nodes: not seen


def test_without_a_measurement_the_error_is_1() -> None:
    none = Timings.none(2)
    assert fit_error(fit(assumed(none), none), none).tolist() == [1, 1]


def test_an_outlier_counts_less() -> None:
    honest = measured(IMAGENET, GPUS, BATCHES)
    spoilt = measured(IMAGENET, GPUS, BATCHES)
    spoilt.seconds[0, 5] *= 20
    clean, dirty = (fit(assumed(t), t, PER_NODE, iterations=30) for t in (honest, spoilt))
    at = (np.array([[2.0]]), np.array([[300.0]]), PER_NODE)
    assert step_seconds(dirty, *at) == pytest.approx(step_seconds(clean, *at), rel=0.1)


def test_runs_are_fitted_side_by_side_as_one_by_one() -> None:
    parts = [measured(truth, GPUS, BATCHES, 0.02) for truth in (IMAGENET, BERT)]
    both = Timings(
        *(
            np.concatenate([getattr(p, name) for p in parts])
            for name in ("gpus", "batch", "seconds", "count", "settings")
        )
    )
    together = fit(assumed(both), both, PER_NODE)
    for row, part in enumerate(parts):
        assert together[row] == pytest.approx(fit(assumed(part), part, PER_NODE)[0])


def test_a_setting_is_remembered_as_its_mean_and_the_oldest_but_the_first_go() -> None:
    timings, row = Timings.none(3), np.array([1])
    for seconds in (1.0, 3.0):
        timings.add(row, np.array([2.0]), np.array([100.0]), np.array([seconds]))
    assert timings.seconds[1, 0] == 2
    assert timings.settings.tolist() == [0, 1, 0]
    for number in range(SLOTS):
        timings.add(row, np.array([1.0]), np.array([200.0 * 1.1**number]), np.array([5.0]))
    assert timings.gpus[1, 0] == 2
    assert timings.batch[1, 1] == pytest.approx(200 * 1.1 ** (SLOTS - 1))
    assert timings.settings[1] == SLOTS + 1
    timings.forget(row)
    assert not timings.count.any()


def situation(**changes: float) -> Situation:
    values = {
        "gpus": 1,
        "batch": 200,
        "gpus_min": 1,
        "gpus_max": 16,
        "batch_min": 100,
        "batch_max": 12800,
        "noise_scale": 20_000,
        "alpha": 1,
        "beta": 0.5,
    }
    return Situation(**{k: np.array([float(v)]) for k, v in (values | changes).items()})


def test_a_novices_setting_is_to_grow() -> None:
    found = advise(IMAGENET[None], situation(gpus=8), PER_NODE)
    assert found.batch_factor[0] == pytest.approx(1.2)
    assert found.gain[0] > 0.05


def test_the_best_setting_stays() -> None:
    s = situation(gpus_min=4, gpus_max=4, gpus=4, batch=200)
    for _ in range(40):
        found = advise(IMAGENET[None], s, PER_NODE)
        s = situation(gpus_min=4, gpus_max=4, gpus=4, batch=s.batch[0] * found.batch_factor[0])
    assert advise(IMAGENET[None], s, PER_NODE).batch_factor[0] == 1
    others = np.geomspace(100, 12800, 60)
    gains = [gain(IMAGENET[None], s, np.zeros(1), b / s.batch, PER_NODE)[0] for b in others]
    assert max(gains) < goodput.WORTH * 1.5


def test_without_the_noise_scale_the_batch_stays() -> None:
    found = advise(IMAGENET[None], situation(gpus=8, noise_scale=np.nan), PER_NODE)
    assert found.batch_factor[0] == 1


def test_what_costs_more_takes_fewer_devices() -> None:
    deltas = [
        advise(IMAGENET[None], situation(gpus=3, gpus_max=4, batch=400, beta=beta), PER_NODE)
        for beta in (0.0, 5.0)
    ]
    assert deltas[0].gpu_delta[0] > 0 > deltas[1].gpu_delta[0]


def test_the_bounds_hold() -> None:
    tight = situation(gpus=4, gpus_min=4, gpus_max=4, batch=200, batch_min=200, batch_max=200)
    found = advise(IMAGENET[None], tight, PER_NODE)
    assert (found.gpu_delta[0], found.batch_factor[0], found.gain[0]) == (0, 1, 0)


def test_the_gain_is_that_of_throughput_times_efficiency() -> None:
    def goodput_of(gpus: int, batch: float) -> float:
        return batch / by_hand(IMAGENET, gpus, batch, 4) / (20_000 + batch)

    found = gain(IMAGENET[None], situation(), np.array([1]), np.array([1.2]), PER_NODE)
    assert found[0] == pytest.approx(goodput_of(2, 240) / goodput_of(1, 200) - 1)
