"""Output of `seeupo algorithms`: a list of all algorithms, and the card of one, from the docstrings of its file."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from seeupo.config.algorithms import algorithm_entry, load_class, needs_with, plugin_names, shipped_algorithms
from seeupo.config.json_schema import section_from_schema
from seeupo.config.keys import attributes, keys_of
from seeupo.config.option_types import describe_type
from seeupo.config.toml import toml


@dataclass(frozen=True)
class Option:
    """An option of an algorithm, as written in a recipe."""

    name: str
    default: str
    accepted: str
    meaning: str


@dataclass(frozen=True)
class AlgorithmCard:
    """What `seeupo algorithms` prints about an algorithm.

    Attributes:
        name: `algorithm.name`.
        summary: First paragraph of the class's docstring, shown in the list.
        description: Docstring of the algorithm's file, with its formula.
        needs: What the engine must provide with default options, besides log-probs and steps.
        options: The options, those shared with other algorithms first.
    """

    name: str
    summary: str
    description: str
    needs: tuple[str, ...]
    options: tuple[Option, ...]


def algorithm_card(name: str) -> AlgorithmCard:
    """Return the card of an algorithm: a shipped one, that of an installed package, or a class."""
    entry = shipped_algorithms().get(name) or algorithm_entry(load_class(name))
    section = section_from_schema(name, entry)
    keys, meanings = keys_of(section), attributes(section)
    options = []
    for key in keys.values():
        default = toml("none" if key.default is None else key.default)
        options.append(Option(key.name, default, describe_type(key.hint), meanings.get(key.name, "")))
    needs = needs_with(entry, {key.name: key.default for key in keys.values()})
    return AlgorithmCard(name, entry["description"], entry["method"], tuple(sorted(needs)), tuple(options))


def show_list(console: Console) -> None:
    """Print one line per algorithm: what it does, and what it needs. Those of installed packages are not imported."""
    table = Table("name", "needs", "method", box=None, pad_edge=False)
    for name in shipped_algorithms():
        card = algorithm_card(name)
        table.add_row(name, ", ".join(card.needs), card.summary.removesuffix("."))
    for name in plugin_names():
        table.add_row(name, "", "of an installed package")
    console.print(table)


def show_algorithm(name: str, console: Console) -> None:
    """Print the card of one algorithm."""
    card = algorithm_card(name)
    console.print(Text.assemble((name, "bold"), f"  {card.summary}"))
    for paragraph in card.description.split("\n\n"):
        console.print()
        if paragraph.startswith("    "):  # a formula
            console.print(Text(paragraph), soft_wrap=True)
        else:
            console.print(Text(" ".join(paragraph.split())))
    console.print(Text.assemble(("\nNeeds", "bold"), f"  {', '.join(card.needs) or 'log-probs and steps only'}"))
    console.print(
        Text.assemble(("\nOptions", "bold"), f"  in a recipe, or with --algorithm.name {name} --algorithm.KEY")
    )
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    for option in card.options:
        meaning = Text(option.meaning)
        meaning.append(f"{' ' if option.meaning else ''}({option.accepted})", style="dim")
        table.add_row(Text(option.name), Text(option.default), meaning)
    console.print(Padding(table, (0, 0, 0, 2)))
