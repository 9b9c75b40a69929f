"""Output of `seeupo algorithms`: a list of all algorithms, and the card of one, from the docstrings of its file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from seeupo.config.algorithms import algorithm_entry, load_class, needs_with, plugin_names, shipped_algorithms
from seeupo.config.json_schema import section_from_schema
from seeupo.config.keys import attributes, keys_of
from seeupo.config.option_types import describe_type
from seeupo.config.toml import toml


def default_needs(entry: Mapping[str, Any]) -> str:
    """Return what the engine must provide with default options, besides log-probs and steps."""
    defaults = {name: option.get("default") for name, option in entry["properties"].items()}
    return ", ".join(sorted(needs_with(entry, defaults)))


def show_list(console: Console) -> None:
    """Print one line per algorithm: what it does, and what it needs. Those of installed packages are not imported."""
    table = Table("name", "needs", "method", box=None, pad_edge=False)
    for name, entry in shipped_algorithms().items():
        table.add_row(name, default_needs(entry), entry["description"].removesuffix("."))
    for name in plugin_names():
        table.add_row(name, "", "of an installed package")
    console.print(table)


def show_algorithm(name: str, console: Console) -> None:
    """Print the card of one algorithm: a shipped one, that of an installed package, or a class."""
    entry = shipped_algorithms().get(name) or algorithm_entry(load_class(name))
    console.print(Text.assemble((name, "bold"), f"  {entry['description']}"))
    for paragraph in entry["method"].split("\n\n"):
        console.print()
        if paragraph.startswith("    "):  # a formula
            console.print(Text(paragraph), soft_wrap=True)
        else:
            console.print(Text(" ".join(paragraph.split())))
    console.print(Text.assemble(("\nNeeds", "bold"), f"  {default_needs(entry) or 'log-probs and steps only'}"))
    console.print(
        Text.assemble(("\nOptions", "bold"), f"  in a recipe, or with --algorithm.name {name} --algorithm.KEY")
    )
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    section = section_from_schema(name, entry)
    meanings = attributes(section)
    for key in keys_of(section).values():
        meaning = Text.assemble(f"{meanings.get(key.name, '')} ", (f"({describe_type(key.hint)})", "dim"))
        table.add_row(Text(key.name), Text(toml("none" if key.default is None else key.default)), meaning)
    console.print(Padding(table, (0, 0, 0, 2)))
