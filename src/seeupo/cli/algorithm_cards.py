"""Output of `seeupo algorithms`: a table of all algorithms, and the card of one."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from seeupo.algorithms import ALGORITHMS
from seeupo.algorithms.common.cards import CARDS, AlgorithmCard, Cost
from seeupo.config.algorithms import load_class, plugin_names
from seeupo.config.keys import describe_type, keys_of
from seeupo.config.reference import attributes, summary
from seeupo.config.toml import toml

LEGEND = {
    "advantage": "GAE has a critic; GRAE compares attempts at a task",
    "update": "PPU clips ratios, HAML does so turn by turn, REINFORCE has no clip",
    "level": "unit that has one ratio: a token, or a whole response",
    "converges": "with one turn / with several, as the paper's Table 1 claims; see the conditions in `seeupo "
    "algorithms show NAME`",
    "forward": "passes over all turns with default options, + the critic's; T turns",
}
CONVERGES = {"yes": "yes", "no": "no", "not stated": "-"}


@dataclass(frozen=True)
class Option:
    """An option of an algorithm, as written in a recipe."""

    name: str
    default: str
    accepted: str
    meaning: str


def options(name: str) -> list[Option]:
    """Return the options of an algorithm, those shared with other algorithms first."""
    algorithm = load_class(name)
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
    """Print one line per algorithm: components, convergence and cost."""
    table = Table(box=None, pad_edge=False)
    for column in ("name", "advantage", "update", "level", "converges", "forward", "backward"):
        table.add_column(column, no_wrap=True)
    for name in (*ALGORITHMS, *plugin_names()):
        if (card := CARDS.get(name)) is None:
            table.add_row(name)
            continue
        converges = f"{CONVERGES[card.single_turn]} / {CONVERGES[card.multi_turn]}"
        table.add_row(name, card.advantage, card.update, card.level, converges, *card.cost.by_default)
    console.print(table)
    legend = Table(box=None, padding=(0, 2, 0, 0), show_header=False, style="dim")
    for column, meaning in LEGEND.items():
        legend.add_row(column, Text(meaning))
    console.print()
    console.print(legend)


def show_algorithm(name: str, console: Console) -> None:
    """Print the card and the options of one algorithm; without a card, the summary of its class."""
    card = CARDS.get(name)
    if card is None:
        console.print(Text.assemble((name, "bold"), f"  {summary(load_class(name))}"))
    else:
        console.print(Text.assemble((card.title, "bold"), f"  algorithm.name = {toml(name)}"))
        _print_block("Idea", card.idea, console)
        _print_block("Formula", "", console)
        for line in card.formula.splitlines():
            console.print(f"  {line}".rstrip(), soft_wrap=True)
        for heading, text in _sections(card):
            _print_block(heading, text, console)
    _print_options(name, console)


def _sections(card: AlgorithmCard) -> list[tuple[str, str]]:
    verdicts = "; ".join(f"claim {number}: {verdict}" for number, verdict in card.verdicts.items())
    return [
        (
            "Components",
            f"{card.advantage}: {card.advantage_details}\n{card.update}: {card.update_details}\nLevel: {card.level}",
        ),
        (
            "Guarantees claimed by the paper",
            f"Converges with one turn: {card.single_turn}; with several: {card.multi_turn} (Table 1). "
            f"{card.guarantees}",
        ),
        ("Conditions", card.conditions),
        ("Measurements", f"{card.measurements}\nTheory study: {verdicts}"),
        ("Cost of an iteration", format_cost(card.cost)),
        ("When to use it", card.use_when),
        ("Source", card.source),
    ]


def format_cost(cost: Cost) -> str:
    """Return passes and steps as text, by default and in general."""
    forward, backward = cost.by_default
    lines = [f"By default {forward} forward and {backward} backward passes over all turns of the iteration."]
    lines.append(f"In general {cost.forward} forward, {cost.backward} backward, {cost.steps} optimizer steps;")
    if cost.critic_forward:
        lines[0] = lines[0].replace(" passes", " passes (policy + critic)")
        lines.append(
            f"critic: {cost.critic_forward} forward, {cost.critic_backward} backward, {cost.critic_steps} steps;"
        )
    lines.append("E epochs, B mini-batches, T turns, K = 1 with a KL to the reference policy and 0 without.")
    return "\n".join(lines)


def _print_block(heading: str, text: str, console: Console) -> None:
    console.print(Text(f"\n{heading}", style="bold"))
    if text:
        console.print(Padding(Text(text), (0, 0, 0, 2), expand=False))


def _print_options(name: str, console: Console) -> None:
    console.print(
        Text.assemble(("\nOptions", "bold"), f"  in a recipe, or with --algorithm.name {name} --algorithm.KEY")
    )
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    for option in options(name):
        meaning = Text(option.meaning)
        meaning.append(f"{' ' if option.meaning else ''}({option.accepted})", style="dim")
        table.add_row(Text(option.name), Text(option.default), meaning)
    console.print(Padding(table, (0, 0, 0, 2)))
