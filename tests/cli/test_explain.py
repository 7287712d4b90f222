"""``rlsched explain``, and the story of the decisions in ``rlsched show``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlflow_rlsched import decision_log
from mlflow_rlsched.daemon import home
from mlflow_rlsched.policy.action import Setting
from mlflow_rlsched.policy.baselines import Fixed, Rules
from mlflow_rlsched.policy.decision import Decider
from mlflow_rlsched.policy.interval import Interval
from mlflow_rlsched.policy.limits import Limits
from mlflow_rlsched.protocol import Report
from mlflow_rlsched.store import Store
from tests.cli.conftest import Rlsched, submit

RUN = "aaaa1111"
LIMITS = Limits(batch_initial=64, optimizer="sgd", interval_s=10.0)


@pytest.fixture
def decided(store: Store) -> list[dict[str, object]]:
    """A run whose loss is calm at first and then flies off, as the real decider saw it."""
    submit(store, RUN)
    decider = Decider(LIMITS, Rules())
    decider.others = [Fixed()]
    setting, records = Setting(1, 64), []
    for number in range(1, 6):
        losses = [1.0, 1.1, 0.9, 1.0, 1.05] * 2 if number < 4 else [5.0, 80.0, 9.0, 70.0, 8.0] * 2
        at = [10.0 * number - 10 + i for i in range(1, 11)]
        reports = [
            Report(numbers={"time": t, "samples": 640 * t, "step": 10 * t, "loss": loss})
            for t, loss in zip(at, losses, strict=True)
        ]
        can = frozenset({"batch_size", "learning_rate"})
        decision = decider.decide(Interval(10.0, at[-1], setting, reports=reports, can=can))
        records.append(
            decision.to_json()
            | {"attempt": 1, "time": at[-1], "seq": 0, "reason": decision.reason}
            | {"training": {"batch_size": 64, "learning_rate": 0.1}}
        )
        decision_log.append(home() / "runs" / RUN, records[-1])
        setting = decision.setting
    assert records[3]["setting"] != records[3]["before"]
    return records


def test_show_tells_the_changes(rlsched: Rlsched, decided: list[dict[str, object]]) -> None:
    result = rlsched("show", RUN)
    changes = [r for r in decided if r["setting"] != r["before"]]
    assert changes
    assert f"{len(changes)} of 5 decisions changed something" in result.stdout
    (line,) = [x for x in result.stdout.splitlines() if x.startswith(f"{changes[0]['number']} ")]
    assert "learning rate 0.1 → 0." in line
    assert str(changes[0]["reason"]) in line


def test_show_says_nothing_of_decisions_where_there_are_none(
    rlsched: Rlsched, store: Store
) -> None:
    submit(store, RUN)
    assert "decision" not in rlsched("show", RUN).stdout
    result = rlsched("explain", RUN)
    assert result.exit_code == 2
    assert "no decision was made on this run" in result.stderr


def test_explain_one_in_full(rlsched: Rlsched, decided: list[dict[str, object]]) -> None:
    out = rlsched("explain", RUN, "4").stdout
    assert "decision     4, attempt 1, 40 s into the run" in out
    assert "learning rate x 0.8" in out
    assert "nothing to object" in out
    assert "followed by  after 10 s" in out
    state = {line.split()[0]: line for line in out.split("STATE")[1].splitlines()[1:] if line}
    assert len(state) == 23
    assert "not known" in state["gpu_utilisation"]
    assert "not known" not in state["loss_oscillation"]


def test_explain_shows_what_other_policies_would_have_done(
    rlsched: Rlsched, decided: list[dict[str, object]]
) -> None:
    assert "OTHER POLICY" not in rlsched("explain", RUN, "4").stdout
    lines = rlsched("explain", RUN, "4", "--alternatives").stdout.splitlines()
    assert lines[-2].split() == ["OTHER", "POLICY", "VERSION", "WOULD", "HAVE", "DONE", "WHY"]
    assert lines[-1].split() == ["fixed", "1", "no", "change", "the", "setting", "is", "fixed"]


def test_records_from_before_there_were_alternatives(
    rlsched: Rlsched, decided: list[dict[str, object]]
) -> None:
    old = {name: value for name, value in decided[-1].items() if name != "alternatives"}
    proposal = decided[-1]["proposal"]
    assert isinstance(proposal, dict)
    del proposal["doubt"]
    decision_log.append(home() / "runs" / RUN, old | {"number": 6})
    assert rlsched("show", RUN).exit_code == 0
    out = rlsched("explain", RUN, "6", "--alternatives").stdout
    assert out.endswith("no other policy was asked\n")


def test_show_says_where_the_rules_decided_for_another_policy(
    rlsched: Rlsched, decided: list[dict[str, object]]
) -> None:
    assert "in the place of" not in rlsched("show", RUN).stdout
    proposal = decided[-1]["proposal"]
    assert isinstance(proposal, dict)
    told = decided[-1] | {"number": 6, "proposal": proposal | {"doubt": "power is not known"}}
    decision_log.append(home() / "runs" / RUN, told)
    said = "the rules decided 1 times in the place of the run's policy, the last time as power is"
    assert said in rlsched("show", RUN).stdout


def test_explain_takes_the_last_change_by_default(
    rlsched: Rlsched, decided: list[dict[str, object]]
) -> None:
    last = [r["number"] for r in decided if r["setting"] != r["before"]][-1]
    value = json.loads(rlsched("explain", RUN, "--json").stdout)
    assert value["decision"]["number"] == last


@pytest.mark.usefixtures("decided")
def test_a_decision_that_does_not_exist(rlsched: Rlsched) -> None:
    result = rlsched("explain", RUN, "9")
    assert result.exit_code == 2
    assert "no decision 9: the last one is 5" in result.stderr
    assert rlsched("explain", RUN, "0").exit_code == 2


def test_a_run_folder_that_is_gone_is_no_traceback(
    rlsched: Rlsched, store: Store, tmp_path: Path
) -> None:
    submit(store, RUN)
    (home() / "runs" / RUN).rmdir()
    assert rlsched("explain", RUN).exit_code == 2
    assert rlsched("show", RUN).exit_code == 0


def test_spoilt_lines_are_counted_and_left_out(
    rlsched: Rlsched, decided: list[dict[str, object]]
) -> None:
    run_dir = home() / "runs" / RUN
    decision_log.append(run_dir, decided[-1] | {"number": 6, "history": {"samples": "many"}})
    decision_log.append(run_dir, {"number": 7})
    with open(run_dir / decision_log.NAME, "a") as file:
        file.write('{"number": 8, "att')
    for command in ("show", "explain"):
        result = rlsched(command, RUN)
        assert result.exit_code == 0, result.output
        assert "3 lines of decisions.jsonl cannot be read" in result.stderr
    assert "of 5 decisions changed something" in rlsched("show", RUN).stdout
