"""Markdown report of the credit study, with a figure per axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from seeupo.utils.atomic_files import write_text
from seeupo.utils.output_paths import check_output
from studies.credit.display import question_rows, score_rows
from studies.credit.methods import TRUE, WITH_M, WITHOUT_M
from studies.credit.problem import KINDS
from studies.credit.study import AXES, Scores, Setting
from studies.credit.verdict import Question
from studies.theory.report import COLORS, GRAY, STYLE, bars, canvas

SHOWN = (WITH_M, "SeeUPO, natural", WITHOUT_M, "GiGPO", "PPO, turn level, critic error 0.5")
LABELS = {
    "turns": "turns T",
    "group_size": "group size G",
    "noise": "noise",
    "kl": "KL of the update",
    "decisive": "decisive turn",
}


def write_report(results: Sequence[Scores], asked: Sequence[Question], directory: Path) -> Path:
    """Write scores.md and its figures into the directory; return the path of the page."""
    folder = check_output(directory / "figures", folder=True)
    folder.mkdir(parents=True, exist_ok=True)
    figures = {"methods": all_methods(results)} | {axis: along(results, axis) for axis in LABELS}
    with rc_context(STYLE):
        for name, figure in figures.items():
            figure.savefig(check_output(folder / f"{name}.svg"), metadata={"Date": None}, bbox_inches="tight")
    page = directory / "scores.md"
    write_text(check_output(page), "\n".join(_parts(results, asked)))
    return page


def _parts(results: Sequence[Scores], asked: Sequence[Question]) -> list[str]:
    parts = ["# Credit per turn, scored\n", "## Verdicts\n", _table(question_rows(asked)), ""]
    parts += ["| question | chain | decisive | deceptive |", "|---|---|---|---|"]
    parts += [
        f"| {question.title} | " + " | ".join(question.by_kind.get(kind, "") for kind in KINDS) + " |"
        for question in asked
    ]
    parts += ["", "![Gain of J of every method](figures/methods.svg)", ""]
    parts += [f"![Gain of J along an axis: {label}](figures/{axis}.svg)\n" for axis, label in LABELS.items()]
    for result in results:
        parts += [f"## {result.setting.label}\n", _table(score_rows(result)), ""]
    return parts


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    lines = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body)]
    return "\n".join(lines)


def all_methods(results: Sequence[Scores]) -> Figure:
    """Draw the gain of every method as a share of the gain with the true advantages, for each kind of problem."""
    figure, panels = canvas(len(KINDS), 3.6)
    for axes, kind in zip(panels, KINDS, strict=True):
        (result,) = [scores for scores in results if scores.setting == Setting(kind)]
        whole = result.methods[TRUE].gain
        shares = {name: 100 * score.gain / whole for name, score in result.methods.items() if name != TRUE}
        colors = [COLORS[0] if name.startswith("SeeUPO") else GRAY for name in shares]
        bars(axes, shares, colors=colors, label="gain of J, % of that with true advantages")
        axes.set_title(kind)
        if axes is not panels[0]:
            axes.set_yticklabels([])
    return figure


def along(results: Sequence[Scores], axis: str) -> Figure:
    """Draw the gain of some methods along one axis, for each kind of problem that has it."""
    by_setting = {result.setting: result for result in results}
    lines = {
        kind: [by_setting[setting] for setting in (replace(Setting(kind), **{axis: value}) for value in AXES[axis])]
        for kind in (KINDS if axis != "decisive" else ("decisive",))
    }
    figure, panels = canvas(len(lines))
    for axes, (kind, series) in zip(panels, lines.items(), strict=True):
        for color, name in zip(COLORS, SHOWN, strict=True):
            shares = [100 * result.methods[name].gain / result.methods[TRUE].gain for result in series]
            axes.plot([str(value) for value in AXES[axis]], shares, "o-", ms=4, color=color, label=name)
        axes.axhline(100, color=GRAY, lw=0.8, ls=":")
        axes.set(xlabel=LABELS[axis], title=kind)
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    panels[0].set_ylabel("gain of J, % of that\nwith true advantages")
    panels[-1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure
