"""A comparison as Markdown tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from seeupo.config.toml import format_value
from seeupo.utils.text import counted, one_line

QUANTITIES = {
    "optimizer_steps": "optimizer steps",
    "tokens": "tokens through the policy",
    "seconds": "seconds of training",
}


def markdown(table: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a comparison's page: scores, differences, stability, cost and tuning."""
    yield f"# {table['study']}: {_summary(table)}"
    yield ""
    yield from (f"- {sentence}" for sentence in setting_sentences(table))
    yield from _section("Scores", ["arm", *_titles(table)], (_score_row(arm, table) for arm in table["arms"]))
    for key, metric in table["metrics"].items():
        yield from _section(
            f"{metric['title']}: paired difference from {table['reference']}"
            + (" (primary)" if key == table["primary"] else ""),
            ["arm", "difference", "p (Holm)", "seeds above", "probability of improvement", "verdict"],
            (_difference_row(row, row["metrics"][key], table) for row in table["comparisons"]),
        )
    yield from _section(
        "Stability", ["arm", "largest drop", "worst run", "collapsed", "diverged"], map(_stability_row, table["arms"])
    )
    yield from _section(
        "Cost of a run",
        ["arm", "optimizer steps", "tokens", "seconds", *(["of the target"] if table["match"]["spent"] else [])],
        (_cost_row(arm, table) for arm in table["arms"]),
    )
    yield from _section(
        "Settings", ["arm", "settings"], ([arm["name"], settings_text(arm["settings"])] for arm in table["arms"])
    )
    if table["grid"]:
        yield from _section("Tuning", ["arm", "settings", "reward AUC per tuning seed", "chosen"], _tuning_rows(table))
    yield ""
    yield table["statistics"]


def setting_sentences(table: Mapping[str, Any]) -> Iterator[str]:
    """Yield what was compared, how it was matched and tuned, and what limits the comparison."""
    yield (
        f"{counted(len(table['arms']), 'arm')} x {counted(len(table['seeds']), 'seed')} of `{table['recipe']}` "
        f"({table['model']} on {table['environment']}): {table['iterations']} iterations, {table['trajectories']:,} "
        "trajectories per run. All arms of a seed start from the same policy and draw the same tasks."
    )
    if table["start"] is not None:
        yield f"Held-out avg@{table['k']} before training: {interval_text(table['start'])}."
    match = table["match"]
    if match["quantity"] == "none":
        yield "Nothing is matched except trajectories: the arms differ in optimizer steps, tokens and time."
    else:
        off = max(abs(share - 1) for share in match["spent"].values())
        yield (
            f"Matched: {QUANTITIES[match['quantity']]}, {match['target']:,.0f} per run as calibrated; the arms are "
            f"within {off:.0%} of it."
        )
    if table["grid"]:
        tried = "; ".join(f"{key} in {format_value(values)}" for key, values in table["grid"].items())
        yield (
            f"Tuned per arm on {tried}, with {counted(len(table['tuning_seeds']), 'seed')} that "
            f"{'is' if len(table['tuning_seeds']) == 1 else 'are'} not reported."
        )
    for arm in table["arms"]:
        for key in arm["at_the_end_of_the_grid"]:
            yield f"{arm['name']}: the best {key} is at the end of the grid; a better value may be beyond it."
    if len(table["codes"]) > 1 or table["codes"] != [table["versions"]["code"]]:
        yield f"Runs of other versions of the code were accepted: {', '.join(table['codes'])}."


def interval_text(estimate: Mapping[str, float | None], *, signed: bool = False) -> str:
    """Return a value with its interval; without one if there are too few runs."""
    sign = "+" if signed else ""
    value, low, high = (estimate[name] for name in ("value", "low", "high"))
    if low is None or high is None:
        return f"{value:{sign}.3f}"
    return f"{value:{sign}.3f} [{low:{sign}.3f}, {high:{sign}.3f}]"


def settings_text(settings: Sequence[Sequence[Any]]) -> str:
    return ", ".join(f"{key} = {format_value(value)}" for key, value in settings)


def _summary(table: Mapping[str, Any]) -> str:
    verdicts = [(row["arm"], row["metrics"][table["primary"]]["verdict"]) for row in table["comparisons"]]
    parts = [
        f"{', '.join(arm for arm, found in verdicts if found == verdict)}: {verdict.lower()}"
        for verdict in dict.fromkeys(found for _, found in verdicts)
    ]
    return f"reward AUC against {table['reference']}: {'; '.join(parts)}"


def _titles(table: Mapping[str, Any]) -> list[str]:
    return [
        f"{metric['title']}{' (primary)' if key == table['primary'] else ''}"
        for key, metric in table["metrics"].items()
    ]


def _score_row(arm: Mapping[str, Any], table: Mapping[str, Any]) -> list[str]:
    return [arm["name"], *(interval_text(arm["metrics"][key]) for key in table["metrics"])]


def _difference_row(row: Mapping[str, Any], found: Mapping[str, Any], table: Mapping[str, Any]) -> list[str]:
    return [
        row["arm"],
        interval_text(found["difference"], signed=True),
        f"{found['p']:.3f}",
        f"{found['seeds_above']} of {len(table['seeds'])}",
        interval_text(found["probability_of_improvement"]),
        found["verdict"],
    ]


def _stability_row(arm: Mapping[str, Any]) -> list[str]:
    found = arm["stability"]
    drops = (interval_text(found["largest_drop"]), f"{found['worst_drop']:.3f}")
    return [arm["name"], *drops, str(found["collapsed"]), str(found["diverged"])]


def _cost_row(arm: Mapping[str, Any], table: Mapping[str, Any]) -> list[str]:
    cost, spent = arm["cost"], table["match"]["spent"]
    row = [arm["name"], f"{cost['optimizer_steps']:,.0f}", f"{cost['tokens']:,.0f}", f"{cost['seconds']:.0f}"]
    return [*row, f"{spent[arm['name']]:.2f}"] if spent else row


def _tuning_rows(table: Mapping[str, Any]) -> Iterator[list[str]]:
    for arm in table["arms"]:
        for tried in arm["tried"]:
            scores = ", ".join(f"{score:.3f}" for score in tried["scores"])
            chosen = "yes" if tried["settings"] == arm["tuned"] else ""
            yield [arm["name"], settings_text(list(tried["settings"].items())), scores, chosen]


def _section(title: str, head: Sequence[str], rows: Any) -> Iterator[str]:
    yield ""
    yield f"## {title}"
    yield ""
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(one_line(cell).replace('|', '/') for cell in row)} |"
