"""What `seeupo algorithms` prints: a table of all algorithms, and everything about one."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from seeupo.algorithms import ALGORITHMS
from seeupo.algorithms.cards import FACTS, Cost, Facts
from seeupo.config.keys import describe_type, keys_of
from seeupo.config.reference import attributes, summary
from seeupo.config.toml import toml

LEGEND = {
    "advantage": "GAE is a critic's estimate; GRAE compares attempts at a task",
    "update": "PPU clips ratios, HAML does so turn by turn, REINFORCE has no clip",
    "level": "what has one ratio: a token, or a whole response",
    "converges": "with one turn / with several, as the paper's Table 1 claims; the conditions are in `seeupo "
    "algorithms show NAME`",
    "forward": "passes over all samples by default, + the critic's; T turns",
}
MARKS = {"yes": "yes", "no": "no", "not said": "-"}


@dataclass(frozen=True)
class Option:
    """An option of an algorithm, as a recipe has it: its default, what it accepts, what it means."""

    name: str
    default: str
    accepted: str
    meaning: str


def options(name: str) -> list[Option]:
    """The options of an algorithm, those it shares with others first."""
    algorithm = ALGORITHMS[name]
    meanings = attributes(algorithm)
    return [
        Option(
            key.name,
            toml("none" if key.default is None else key.default),
            describe_type(key.hint),
            meanings.get(key.name, ""),
        )
        for key in keys_of(algorithm).values()
    ]


def show_list(console: Console) -> None:
    """One line for each algorithm: what it is made of, what is claimed of it, what it costs."""
    table = Table(box=None, pad_edge=False)
    for column in ("name", "advantage", "update", "level", "converges", "forward", "backward"):
        table.add_column(column, no_wrap=True)
    for name in ALGORITHMS:
        if (facts := FACTS.get(name)) is None:
            table.add_row(name)
            continue
        converges = f"{MARKS[facts.single_turn]} / {MARKS[facts.multi_turn]}"
        table.add_row(name, facts.advantage, facts.update, facts.level, converges, *facts.cost.by_default)
    console.print(table)
    legend = Table(box=None, padding=(0, 2, 0, 0), show_header=False, style="dim")
    for column, meaning in LEGEND.items():
        legend.add_row(column, Text(meaning))
    console.print()
    console.print(legend)


def show_algorithm(name: str, console: Console) -> None:
    """Everything about one algorithm; of one without facts, what its class says."""
    facts = FACTS.get(name)
    if facts is None:
        console.print(Text.assemble((name, "bold"), f"  {summary(ALGORITHMS[name])}"))
    else:
        console.print(Text.assemble((facts.title, "bold"), f"  algorithm.name = {toml(name)}"))
        _block("Idea", facts.idea, console)
        _block("Formula", "", console)
        for line in facts.formula.splitlines():
            console.print(f"  {line}".rstrip(), soft_wrap=True, markup=False, highlight=False)
        for heading, text in _facts(facts):
            _block(heading, text, console)
    _options(name, console)


def _facts(facts: Facts) -> list[tuple[str, str]]:
    verdicts = "; ".join(f"claim {number}: {verdict}" for number, verdict in facts.verdicts.items())
    return [
        (
            "What it is made of",
            f"{facts.advantage}: {facts.advantage_here}\n{facts.update}: {facts.update_here}\nLevel: {facts.level}",
        ),
        (
            "What the paper claims",
            f"It converges with one turn: {facts.single_turn}; with several: {facts.multi_turn} (Table 1). "
            f"{facts.proved}",
        ),
        ("Under which conditions", facts.conditions),
        ("What was measured", f"{facts.measured}\nseeupo theory: {verdicts}"),
        ("What an iteration costs", cost_in_words(facts.cost)),
        ("When to use it", facts.use),
        ("Source", facts.source),
    ]


def cost_in_words(cost: Cost) -> str:
    """Passes and steps, by default and in general."""
    forward, backward = cost.by_default
    lines = [f"By default {forward} forward and {backward} backward passes over all samples of the iteration."]
    lines.append(f"In general {cost.forward} forward, {cost.backward} backward, {cost.steps} optimizer steps;")
    if cost.critic_forward:
        lines[0] = lines[0].replace(" passes", " passes (policy + critic)")
        lines.append(
            f"of the critic {cost.critic_forward} forward, {cost.critic_backward} backward, {cost.critic_steps} steps;"
        )
    lines.append("E epochs, B mini-batches, T turns, K = 1 with a KL to the reference and 0 without.")
    return "\n".join(lines)


def _block(heading: str, text: str, console: Console) -> None:
    """A heading, and beneath it what belongs to it, indented."""
    console.print(Text(f"\n{heading}", style="bold"))
    if text:
        console.print(Padding(Text(text), (0, 0, 0, 2), expand=False))


def _options(name: str, console: Console) -> None:
    console.print(Text.assemble(("\nOptions", "bold"), f"  as in a recipe, or --algorithm.name {name} --algorithm.KEY"))
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    for option in options(name):
        meaning = Text(option.meaning)
        meaning.append(f"{' ' if option.meaning else ''}({option.accepted})", style="dim")
        table.add_row(Text(option.name), Text(option.default), meaning)
    console.print(Padding(table, (0, 0, 0, 2)))
