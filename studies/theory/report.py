"""Markdown report of the theory study, with a figure per claim."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from seeupo.utils.atomic_files import write_text
from seeupo.utils.output_paths import check_output
from studies.theory.display import figures_text
from studies.theory.verdict import Check, Claim, Scope

# Okabe and Ito's palette, safe for color-blind readers.
BLUE, ORANGE, GREEN, RED, PURPLE, GRAY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#777777"
COLORS = (BLUE, ORANGE, GREEN, RED, PURPLE)
STYLE: Any = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "font.size": 9,
    "legend.frameon": False,
    "svg.hashsalt": "seeupo",  # the same figures give the same file
}


def write_report(claims: Sequence[Claim], directory: Path) -> Path:
    """Write claims.md and figures/claim-01.svg, ... into the directory; return the path of the page."""
    check_output(directory / "figures", folder=True).mkdir(parents=True, exist_ok=True)
    parts = ["# The paper's claims, measured\n"]
    for claim in claims:
        name = f"figures/claim-{claim.id:02}.svg"
        with rc_context(STYLE):
            figure = FIGURES[claim.id](claim)
            figure.savefig(check_output(directory / name), metadata={"Date": None}, bbox_inches="tight")
        parts.append(_section(claim, name))
    page = directory / "claims.md"
    write_text(check_output(page), "\n".join(parts))
    return page


def _section(claim: Claim, figure: str) -> str:
    def row(check: Check) -> str:
        return f"| {check.setting} | {check.scope.value} | {check.answer} | {figures_text(check.figures)} |"

    rows = "\n".join(row(check) for check in claim.checks)
    condition = f"Condition: {claim.qualification}\n\n" if claim.qualification else ""
    return (
        f"## {claim.id}. {claim.title}: {claim.verdict}\n\n{claim.claim}\n\n{condition}"
        f"Measured on {claim.problems}.\n\n![{claim.title}]({figure})\n\n"
        f"| setting | scope | holds | figures |\n|---|---|---|---|\n{rows}\n"
    )


def canvas(panels: int = 1, height: float = 2.8) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(4.4 * panels if panels > 1 else 6.5, height), layout="constrained")
    return figure, [figure.add_subplot(1, panels, panel + 1) for panel in range(panels)]


def bars(axes: Axes, values: dict[str, float], *, colors: Sequence[str] | str = BLUE, label: str) -> None:
    """Draw horizontal bars with their values, the first at the top."""
    names, numbers = list(values), list(values.values())
    drawn = axes.barh(range(len(names)), numbers, color=colors, height=0.6)
    axes.bar_label(drawn, fmt="%.3g", padding=3, fontsize=8)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel(label)
    axes.margins(x=0.15)
    if max(numbers, default=0) == 0:
        axes.set_xlim(0, 1)


def scope_colors(checks: Sequence[Check]) -> list[str]:
    return [BLUE if check.scope is Scope.CLAIM else ORANGE for check in checks]


def fall_bars(claim: Claim) -> Figure:
    """Draw the share of iterations in which J fell, for each check that counts falls."""
    counted = [check for check in claim.checks if "falls" in check.figures]
    figure, (axes,) = canvas(height=0.35 * len(counted) + 1)
    rates = {
        check.setting.removeprefix("J never falls: "): 100 * check.figures["falls"] / check.figures["iterations"]
        for check in counted
    }
    bars(axes, rates, colors=scope_colors(counted), label="iterations in which J fell, %")
    axes.set_title("blue: as claimed; orange: in practice")
    return figure


def optimality(claim: Claim) -> Figure:
    figure, (left, right) = canvas(2, 3.6)
    solved = {}
    for check in claim.checks:
        if "solved" in check.figures:
            name = check.setting.replace(" of the unclipped maximizer from full support", "")
            name = name.replace(" until convergence", "").replace("to within ", "")
            solved[name] = 100 * check.figures["solved"] / check.figures["problems"]
    bars(left, solved, label="problems solved to within (...) of J*, %")
    for color, style, (name, curve) in zip(COLORS, ("-", "-", "--", "--", "-."), claim.curves.items(), strict=True):
        label = name.replace("every probability at least 0.01", "soft").replace("safe 0.3 against ", "")
        right.plot(curve, style, color=color, label=label)
    right.axhline(0.3, color=GRAY, lw=0.8, ls=":")
    right.set(xlabel="iteration", ylabel="J", title="safe 0.3 against ..., reverse order", xlim=(0, 30))
    right.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.4, -0.22))
    return figure


def gae_tightness(claim: Claim) -> Figure:
    figure, (left, right) = canvas(2)
    for row, (name, fractions) in enumerate(claim.curves["random_errors"].items()):
        left.plot(fractions, [row] * len(fractions), "o", ms=4, alpha=0.4, color=BLUE)
        left.set_yticks(range(row + 1), list(claim.curves["random_errors"])[: row + 1])
        worst = claim.curves["worst_case"][name]
        right.plot([int(horizon) for horizon in worst], list(worst.values()), "o-", ms=4, color=COLORS[row], label=name)
    left.axvline(1, color=RED)
    left.set(xlabel="bias / bound", title="random critic errors", xlim=(0, 1.05))
    right.axhline(1, color=RED)
    right.set(xscale="log", xlabel="horizon", ylabel="bias / bound", title="worst critic errors")
    right.legend(fontsize=7)
    return figure


def grae_factors(claim: Claim) -> Figure:
    figure, (left, right) = canvas(2)
    for color, baseline in ((BLUE, "mean"), (ORANGE, "leave_one_out")):
        points = {int(k.split("= ")[1]): v for k, v in claim.curves["factors"].items() if k.startswith(baseline)}
        left.plot(list(points), list(points.values()), "o-", color=color, label=baseline.replace("_", " "))
    left.set(xlabel="group size G", ylabel="expected gradient / true gradient", title="gamma = 1", ylim=(0, 1.1))
    left.set_xticks(sorted(points))
    left.legend()
    right.hist(claim.curves["cosine_at_gamma_0.9"], color=BLUE)
    right.set(xlabel="cosine with the true gradient", ylabel="problems", title="gamma = 0.9")
    return figure


def grae_against_true(claim: Claim) -> Figure:
    figure, (axes,) = canvas(height=3.2)
    for offset, (name, color) in enumerate((("GRAE", ORANGE), ("true advantages", BLUE))):
        rates = [100 * curve[name] for curve in claim.curves.values()]
        drawn = axes.barh([row + 0.36 * offset for row in range(len(rates))], rates, 0.33, color=color, label=name)
        axes.bar_label(drawn, fmt="%.3g", padding=3, fontsize=7)
    axes.set_yticks([row + 0.18 for row in range(len(claim.curves))], list(claim.curves))
    axes.invert_yaxis()
    axes.set_xlabel("iterations in which J fell, %")
    axes.legend(loc="upper right")
    return figure


def gspo(claim: Claim) -> Figure:
    figure, (left, right) = canvas(2)
    drifts = claim.curves["lowest_drift_by_deviation"]
    left.plot([float(deviation) for deviation in drifts], list(drifts.values()), "o-", color=BLUE)
    left.axhline(0, color=GRAY, lw=0.8)
    left.set(xscale="log", xlabel="deviation that advantages are divided by", ylabel="lowest drift", title="drift")
    left.set_xticks([0.25, 0.5, 1, 2, 4], ["1/4", "1/2", "1", "2", "4"], minor=False)
    left.minorticks_off()
    counted = [check for check in claim.checks if "falls" in check.figures]
    rates = {
        check.setting.removeprefix("J falls at times: ").replace(", ", ",\n"):
        100 * check.figures["falls"] / check.figures["iterations"]
        for check in counted
    }  # fmt: skip
    bars(right, rates, colors=ORANGE, label="iterations in which J fell, %")
    right.set_title("group normalization")
    return figure


def strips(axes: Axes, groups: dict[str, Sequence[float]], *, label: str) -> None:
    for row, values in enumerate(groups.values()):
        axes.plot(values, [row] * len(values), "o", ms=4, alpha=0.4, color=COLORS[row % len(COLORS)])
    axes.set_yticks(range(len(groups)), list(groups))
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.set_xlabel(label)


def normalization(claim: Claim) -> Figure:
    figure, (left, right) = canvas(2)
    distances = {name.replace(" normalization, ", ",\n"): values for name, values in claim.curves["distances"].items()}
    strips(left, distances, label="distance between maximizers")
    left.set_title("against no normalization")
    strips(right, claim.curves["cosines"], label="cosine between gradients")
    right.set_title("the same, shared network")
    return figure


def identity(claim: Claim) -> Figure:
    figure, (left, right) = canvas(2, 3.6)
    errors = {check.setting.replace(", ", ",\n", 1): check.figures["relative_error"] for check in claim.checks}
    bars(left, errors, colors=scope_colors(claim.checks), label="relative error")
    left.set_xscale("log")
    left.set_xlim(1e-17, 1e3)
    for color, (ratio, points) in zip(COLORS, claim.curves["clip_fraction"].items(), strict=False):
        rates = [float(rate) for rate in points]
        right.plot(rates, [100 * v for v in points.values()], "o-", color=color, label=ratio.replace("_", "-"))
    right.set(xscale="log", xlabel="learning rate", ylabel="turns clipped at 0.2, %", title="five-token actions")
    right.legend()
    return figure


def shifts(claim: Claim) -> Figure:
    figure, (left, right) = canvas(2)
    means = {"A among survivors": claim.curves["survivor_means"], "M in the next pool": claim.curves["carried_means"]}
    strips(left, means, label="mean over the pool")
    left.axvline(0, color=GRAY, lw=0.8)
    right.plot(claim.curves["survivor_means"], claim.curves["distances"], "o", ms=4, color=BLUE)
    right.set(xlabel="mean that is subtracted", ylabel="distance between maximizers", title="clipped maximizer")
    return figure


def effect_of_m(claim: Claim) -> Figure:
    figure, panels = canvas(3, 3.4)
    by_step = [(where, curves) for where, curves in claim.curves.items() if where.startswith("T = 6")]
    for axes, (where, curves) in zip(panels, by_step, strict=True):
        for color, style, (name, curve) in zip(COLORS, ("-", "-", "-", "-", ":"), curves.items(), strict=True):
            axes.plot(range(1, len(curve) + 1), curve, style, color=color, label=name)
        axes.axhline(0.3, color=GRAY, lw=0.8, ls=":")
        axes.set(xlabel="iteration", ylim=(0.15, 1), title=where)
    panels[0].set_ylabel("J, mean over seeds")
    panels[0].legend(fontsize=8, loc="upper left")
    return figure


def update_orders(claim: Claim) -> Figure:
    figure, (axes,) = canvas(height=3.4)
    solved = {
        check.setting.replace(" order", "").replace(" reaches J*: ", ": ").replace(" stops short of J*: ", ": "):
        100 * check.figures["solved"] / check.figures["problems"]
        for check in claim.checks
    }  # fmt: skip
    bars(axes, solved, colors=scope_colors(claim.checks), label="problems solved to within 1e-6 of J*, %")
    axes.set_title("blue: every probability at least 0.01; orange: probabilities may become 0")
    return figure


def transitions(claim: Claim) -> Figure:
    figure, (left, right) = canvas(2)
    gaps = {name: claim.curves[key] for name, key in (("state observed", "observed"), ("not observed", "unobserved"))}
    strips(left, gaps, label="gap to J* after one sweep")
    right.hist(claim.curves["share_of_chance"], color=BLUE)
    right.set(xlabel="share of the return's variance from transitions", ylabel="problems", xlim=(0, 1))
    return figure


def kl_penalty(claim: Claim) -> Figure:
    figure, (axes,) = canvas()
    coefs = [float(coef) for coef in claim.curves["gaps"]]
    for coef, gaps in zip(coefs, claim.curves["gaps"].values(), strict=True):
        axes.plot([coef] * len(gaps), gaps, "o", ms=4, alpha=0.4, color=BLUE)
    axes.plot(coefs, [claim.curves["turns"] * coef for coef in coefs], color=RED, label="turns x coefficient")
    axes.axvline(0.002, color=GRAY, lw=0.8, ls=":", label="the paper's coefficient")
    axes.set(xscale="log", yscale="log", xlabel="KL coefficient", ylabel="gap of the fixed point to J*")
    axes.legend()
    return figure


FIGURES: dict[int, Callable[[Claim], Figure]] = {
    1: fall_bars,
    2: optimality,
    3: gae_tightness,
    4: grae_factors,
    5: fall_bars,
    6: fall_bars,
    7: grae_against_true,
    8: fall_bars,
    9: gspo,
    10: normalization,
    11: identity,
    12: shifts,
    13: effect_of_m,
    14: update_orders,
    15: transitions,
    16: kl_penalty,
}
