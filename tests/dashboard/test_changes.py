"""A browser is sent only what changed since it looked last."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rlsched_dashboard.sources.changes import Changes

states = st.dictionaries(st.sampled_from("abcde"), st.integers(0, 3))


def rows(state: dict[str, int]) -> list[dict[str, object]]:
    return [{"id": name, "value": value} for name, value in state.items()]


def test_news_are_told_apart() -> None:
    changes = Changes("id")
    seen = changes.take(rows({"a": 1, "b": 1}))
    changes.take(rows({"a": 2, "c": 1}))
    news = changes.since(seen)
    assert [row["id"] for row in news.added] == ["c"]
    assert [row["id"] for row in news.updated] == ["a"]
    assert news.removed == ["b"]
    assert not changes.since(news.revision)


@given(st.lists(st.tuples(states, st.booleans()), min_size=1, max_size=8))
def test_who_looks_now_and_then_has_the_rows(steps: list[tuple[dict[str, int], bool]]) -> None:
    changes = Changes("id")
    known: dict[str, object] = {}
    revision = changes.take([])
    for state, looks in [*steps, ({"a": 0}, True)]:
        changes.take(rows(state))
        if not looks:
            continue
        news = changes.since(revision)
        assert {row["id"] for row in news.added}.isdisjoint(known)
        assert {row["id"] for row in news.updated} <= known.keys()
        for row in (*news.added, *news.updated):
            known[str(row["id"])] = row["value"]
        for name in news.removed:
            del known[name]
        revision = news.revision
        assert known == state
