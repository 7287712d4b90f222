"""How charts are drawn, and drawn again."""

from __future__ import annotations

from rlsched_dashboard import charts


def test_a_renewed_chart_changes_in_all_but_its_range() -> None:
    x = {"title": {"text": "minutes"}, "range": [0, 5], "autorange": False, "uirevision": "1"}
    shown = charts.figure([charts.line("loss", [1], [2], "red")], x=x, y={"tickvals": [1, 2]})
    operations = charts.renewed(shown).to_plotly_json()["operations"]
    changed = {tuple(each["location"]): each["params"]["value"] for each in operations}
    assert changed["data",] == shown["data"]
    assert changed["layout", "xaxis", "title"] == {"text": "minutes"}
    assert changed["layout", "yaxis", "tickvals"] == [1, 2]
    assert changed["layout", "showlegend"] is False
    kept = {("layout", "xaxis", each) for each in ("range", "autorange", "uirevision")}
    assert not kept & set(changed)
