"""The figure of ``benchmarks.replay``, of errors that are known."""

from __future__ import annotations

import click
import pytest

from benchmarks.replay import Foretold, _figures


def test_the_median_error_of_what_was_told() -> None:
    found = [
        Foretold("a", 110.0, 90.0, 120.0, 100.0),
        Foretold("b", 80.0, 70.0, 90.0, 100.0),
        Foretold("c", 100.0, 99.0, 101.0, 100.0),
        Foretold("d", None, 0.0, 0.0, 100.0),
    ]
    (figure,) = _figures(found)
    assert figure.value == pytest.approx(0.1)
    assert figure.met
    assert "the largest error 20%" in figure.note
    assert "2 within their 90 % intervals; 1 refused" in figure.note


def test_no_figure_without_a_replay() -> None:
    with pytest.raises(click.ClickException, match="all 1 replays refused"):
        _figures([Foretold("d", None, 0.0, 0.0, 100.0)])
