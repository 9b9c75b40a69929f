"""The documentation page of pocket matches the code."""

import inspect
import re
from pathlib import Path

import pytest

from envs.pocket.examples import transcript
from seeupo.envs.pocket import PocketFactory
from seeupo.envs.pocket.kinds import KINDS

PAGE = (Path(__file__).parents[3] / "docs/environments/pocket.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("|")]


@pytest.mark.parametrize(("block", "options"), [(0, {}), (1, {"surface": "natural", "tools": "signatures"})])
def test_the_episodes_on_the_page_are_reproduced(block, options):
    world = PocketFactory(**options)
    (task,) = (task for task in world.tasks("test") if task.id == "test-0004-bill")
    shown = re.findall(r"```text\n(.*?)\n```", PAGE, re.DOTALL)
    assert len(shown) == 2
    episode = transcript(world.make(), task, world.expert(task))
    assert all(part in episode for part in shown[block].split("\n...\n"))


def test_options_and_their_defaults():
    parameters = inspect.signature(PocketFactory).parameters.values()
    defaults = {f"`{option.name}`": f"`{option.default!r}`".replace("'", '"') for option in parameters}
    assert {row[0]: row[1] for row in ROWS if row[0] in defaults} == defaults


def test_kinds_and_their_calls():
    calls = {row[0]: row[1] for row in ROWS if row[0] in KINDS}
    assert calls == {name: str(len(kind.steps)) for name, kind in KINDS.items()}
