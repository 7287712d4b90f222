"""``rlsched explain``: one decision in full; and the story that ``rlsched show`` tells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from mlflow_rlsched.cli.common import (
    WrongUsage,
    find_task,
    json_option,
    opened,
    plain,
    print_json,
    print_table,
    store_option,
    table,
)
from mlflow_rlsched.overview.decisions import (
    Record,
    action_text,
    change,
    changed,
    rate_text,
    read,
    spoilt_text,
)
from mlflow_rlsched.words import duration


@click.command()
@click.argument("run_id", metavar="RUN_ID")
@click.argument("number", metavar="[N]", type=click.IntRange(min=1), required=False)
@click.option("--alternatives", is_flag=True, help="Show what the other policies would have done.")
@store_option
@json_option
def explain(run_id: str, number: int | None, alternatives: bool, url: str, as_json: bool) -> None:
    """Explain decision N of a run, by default the last one that changed something."""
    with opened(url) as store:
        task = find_task(store, run_id)
    records, spoilt = read(Path(task.spec.run_dir))
    warn_of_spoilt(spoilt)
    place = _place(records, number)
    record = records[place]
    after = records[place + 1] if place + 1 < len(records) else None
    if as_json:
        print_json({"decision": record, "followed_by": after})
    else:
        _print(record, after)
        if alternatives:
            _print_alternatives(record)


def _place(records: Sequence[Record], number: int | None) -> int:
    """Where in ``records`` the decision stands that is meant."""
    if not records:
        raise WrongUsage(
            "no decision was made on this run: they begin some seconds after its training reports"
        )
    if number is None:
        changes = [i for i, record in enumerate(records) if changed(record)]
        return changes[-1] if changes else len(records) - 1
    places = [i for i, record in enumerate(records) if record["number"] == number]
    if not places:
        last = records[-1]["number"]
        raise WrongUsage(f"this run has no decision {number}: the last one is {last}")
    return places[-1]


def warn_of_spoilt(count: int) -> None:
    """Say on standard error that not all that was decided can be told."""
    if count:
        click.echo(f"Warning: {spoilt_text(count)}", err=True)


def print_story(records: Sequence[Record], rows: int) -> None:
    """The decisions that changed something, the last ``rows`` of them, one line each."""
    count = len(records)
    changes = [record for record in records if changed(record)]
    if not count:
        return
    said = f"{len(changes)} of {count} decisions changed something"
    left_out = f", the last {rows} of them" if len(changes) > rows else ""
    click.echo(f"\n{said}{left_out}{':' if changes else ''}")
    if changes:
        headings = ["NO", "AT", "CHANGE", "WHY"]
        print_table(table(headings, (_row(record) for record in changes[-rows:])))
    doubts = [doubt for record in records if (doubt := record["proposal"].get("doubt"))]
    if doubts:
        said = f"the rules decided {len(doubts)} times in the place of the run's policy"
        click.echo(f"{said}, the last time as {plain(doubts[-1])}")


def _row(record: Record) -> list[object]:
    number, at = record["number"], duration(record["elapsed_s"])
    return [number, at, change(record), record["reason"]]


def _print(record: Record, after: Record | None) -> None:
    policy = f"{record['policy']} (version {record['version']})"
    lines = {
        "decision": f"{record['number']}, attempt {record['attempt']},"
        f" {duration(record['elapsed_s'])} into the run",
        "policy": policy,
        "proposal": _proposal(record),
        "guard": record["vetoes"] or ["nothing to object"],
        "outcome": change(record) or "no change",
        "setting": _setting(record, record["setting"]),
        "reward": _reward(record),
        "followed by": "nothing yet" if after is None else _followed(record, after),
    }
    for name, value in lines.items():
        first, *more = [value] if isinstance(value, str) else value
        click.echo(f"{name:<13}{plain(first)}")
        for line in more:
            click.echo(f"{'':<13}{plain(line)}")
    click.echo()
    print_table(table(["STATE", "VALUE", "UNIT", "NORMALISED", ""], _state_rows(record)))


def _print_alternatives(record: Record) -> None:
    """What the other policies would have done; records of older agents do not hold it."""
    rows = [
        [
            name,
            each["version"],
            action_text(each["action"]) if each["action"] else "",
            each["reason"],
        ]
        for name, each in record.get("alternatives", {}).items()
    ]
    click.echo()
    if rows:
        print_table(table(["OTHER POLICY", "VERSION", "WOULD HAVE DONE", "WHY"], rows))
    else:
        click.echo("no other policy was asked")


def _proposal(record: Record) -> list[str]:
    return [action_text(record["proposal"]["action"]), record["proposal"]["reason"]]


def _setting(record: Record, setting: Record) -> str:
    said = [f"{setting['gpus']} devices"]
    if setting["batch_size"] is not None:
        said.append(f"batch {setting['batch_size']}")
    said.append(f"learning rate {rate_text(record, setting)} (x {setting['lr_scale']:.4g})")
    return ", ".join(said)


def _reward(record: Record) -> str:
    parts = {name: value for name, value in record["reward"].items() if name != "total"}
    said = ", ".join(f"{name} {value:+.4g}" for name, value in parts.items())
    return f"{record['reward']['total']:+.4g} for the interval that ended here ({said})"


def _followed(record: Record, after: Record) -> str:
    said = [f"after {duration(after['elapsed_s'] - record['elapsed_s'])}"]
    then, now = record["history"]["throughput"], after["history"]["throughput"]
    if then is not None and now is not None:
        said.append(f"{then:.4g} → {now:.4g} samples/s")
    then, now = (each["state"].get("loss") for each in (record, after))
    if then and now and not then["missing"] and not now["missing"]:
        said.append(f"loss {then['value']:.4g} → {now['value']:.4g} of the first loss")
    said.append(f"reward {after['reward']['total']:+.4g}")
    return ", ".join(said)


def _state_rows(record: Record) -> Iterable[Sequence[object]]:
    from mlflow_rlsched.policy.state import FIELDS

    for field in FIELDS:
        known = record["state"].get(field.name)
        if known is not None:
            note = "not known" if known["missing"] else ""
            value, normalised = f"{known['value']:.4g}", f"{known['normalised']:+.2f}"
            yield field.name, value, field.unit, normalised, note
