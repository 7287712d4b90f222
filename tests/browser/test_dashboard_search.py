"""The page Search: a study that real runs seeded, as Optuna has it."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from mlflow_rlsched.search import Seeded, seed_study
from mlflow_rlsched.studies import open_storage
from tests.browser.conftest import Lived
from tests.browser.dashboard import PHONE, watched

optuna = pytest.importorskip("optuna")
from optuna.distributions import (  # noqa: E402
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import TrialState, create_trial  # noqa: E402

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(900),
]  # the runs are made first

KINDS = ("sgd", "a <b>kind</b> of a long name")
SPACE = {
    "lr": FloatDistribution(1e-4, 1.0, log=True),
    "batch_size": IntDistribution(4, 512, log=True),
}
WHOLE = SPACE | {"optimizer": CategoricalDistribution(KINDS)}
CHARTS = ".js-plotly-plot"
BOUND = 400


@dataclass(frozen=True)
class Made:
    """A study, and what its seeding said."""

    study: Any
    seeded: Seeded


def own_trial(number: int) -> Any:
    """A trial of a search: the best ones have a rate near 0.02."""
    drawn = random.Random(number)
    rate, kind = 10 ** drawn.uniform(-4, 0), drawn.choice(KINDS)
    value = 0.1 + math.log10(rate / 0.02) ** 2
    state = TrialState.PRUNED if number % 6 == 5 else TrialState.COMPLETE
    return create_trial(
        state=state,
        value=value,
        params={"lr": rate, "batch_size": drawn.randint(4, 512), "optimizer": kind},
        distributions=WHOLE,
        intermediate_values={0: value + 1, 1: value},
        user_attrs={"rlsched.search": "s", "rlsched.run_id": f"{number:032x}"},
    )


@pytest.fixture(scope="module")
def made(lived: Lived) -> Made:
    storage = open_storage(f"journal:///{lived.world.home}/studies.journal")
    study = optuna.create_study(study_name="digits", storage=storage)
    seeded = seed_study(
        study, experiment="Default", params=SPACE, tracking_uri=lived.world.tracking_uri
    )
    for number in range(24):
        study.add_trial(own_trial(number))
    study.ask(WHOLE)
    optuna.create_study(study_name="newer", storage=storage)
    return Made(study, seeded)


def opened(page: Page, lived: Lived) -> None:
    expect.set_options(timeout=60_000)
    page.goto(f"{lived.url}/search?study=digits")
    page.wait_for_selector("#search-parallel .scatterlayer path.js-line", state="attached")
    page.wait_for_selector("#search-history .points path", state="attached")


def drawn(page: Page, chart: str, what: str) -> Any:
    return page.evaluate(f"document.querySelector('#{chart} {CHARTS}').data.map({what})")


def test_it_shows_what_optuna_has(browser: Browser, lived: Lived, made: Made) -> None:
    study, seeded = made.study, made.seeded
    assert seeded.complete == 1, "the digits"
    assert sum(seeded.left_out.values()) >= 5
    trials = study.get_trials()
    complete = [t for t in trials if t.state is TrialState.COMPLETE]
    with watched(browser) as page:
        opened(page, lived)
        figures = page.locator("#search-body .figure")
        expect(figures.nth(0)).to_contain_text(f"{study.best_value:.4g}")
        expect(figures.nth(0)).to_contain_text(f"trial {study.best_trial.number}")
        expect(figures.nth(1)).to_contain_text("24")
        expect(figures.nth(1)).to_contain_text("1 running now")

        history = dict(drawn(page, "search-history", "t => [t.name, t.y]"))
        assert history["trial"] == [t.value for t in complete[1:]]
        assert history["past run"] == [complete[0].value]
        assert history["best so far"][-1] == study.best_value
        assert len(history["pruned"]) == 4

        axes = page.locator("#search-parallel .xtick text").all_text_contents()
        assert axes == ["batch_size", "lr", "optimizer", "value"]
        lines = drawn(page, "search-parallel", "t => t.x.filter(x => x === 0).length")
        assert sum(lines) == len(complete) - 1, "the past run has no optimizer"

        rows = page.get_by_role("region", name="Best trials").locator("tbody tr")
        best = sorted(complete, key=lambda t: t.value)
        expect(rows).to_have_count(10)
        for n, trial in enumerate(best[:3]):
            expect(rows.nth(n).locator("td").first).to_contain_text(str(trial.number))
        link = rows.first.get_by_role("link")
        expect(link).to_have_attribute("href", f"/runs/{best[0].user_attrs['rlsched.run_id']}")

        told = page.get_by_role("region", name="What seeded the study")
        expect(told.locator("tr", has_text="added, finished")).to_contain_text("1")
        for reason, count in seeded.left_out.items():
            expect(told.locator("tr", has_text=reason).first).to_contain_text(str(count))


def test_another_study_is_chosen_and_stands_in_the_address(
    browser: Browser, lived: Lived, made: Made
) -> None:
    with watched(browser) as page:
        opened(page, lived)
        page.get_by_role("textbox", name="Study that is shown").click()
        page.get_by_role("option", name="newer").click()
        expect(page.get_by_text("No values yet")).to_be_visible()
        page.wait_for_function("location.search.includes('study=newer')")
        page.go_back()
        page.goto(f"{lived.url}/search?study=gone")
        expect(page.get_by_text("there is no study 'gone' in this storage")).to_be_visible()


def test_a_trial_that_ends_appears(browser: Browser, lived: Lived, made: Made) -> None:
    with watched(browser, scheme="dark") as page:
        opened(page, lived)
        made.study.add_trial(own_trial(100))
        number = made.study.get_trials()[-1].number
        has_it = f"t => (t.x || []).includes({number})"
        page.wait_for_function(
            f"document.querySelector('#search-history {CHARTS}').data.some({has_it})"
        )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_has_all_of_it_in_its_width(
    browser: Browser, lived: Lived, made: Made, scheme: str
) -> None:
    with watched(browser, PHONE, scheme) as page:
        opened(page, lived)
        assert page.evaluate("document.documentElement.scrollWidth") <= BOUND
        boxes = [chart.bounding_box() for chart in page.locator(f"#search-body {CHARTS}").all()]
        assert len(boxes) == 6, "history, importances, coordinates, three slices"
        for box in boxes:
            assert box is not None
            assert box["x"] >= 0
            assert 280 < box["width"] <= BOUND - box["x"]
            assert box["height"] > 200
        ends = [box["y"] + box["height"] for box in boxes if box]
        assert all(box["y"] >= end for box, end in zip(boxes[1:], ends, strict=False) if box)
