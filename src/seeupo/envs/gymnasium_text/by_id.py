"""Environments of Gymnasium as text: observations are rendered, and actions are read from the model's text.

Gymnasium is imported when an environment is made.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seeupo.errors import EnvError

LARGEST_BOX = 64
"""Number of numbers of an observation up to which it is written out."""
COLORS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
COLORED = re.compile(r"\x1b\[([\d;]*)m([^\x1b]*)\x1b\[0m")
WRAP = "wrap it in a class of yours and name that with make=my_module:MyEnv"


@dataclass(frozen=True)
class GymnasiumById:
    """Makes a text environment from an id that Gymnasium knows.

    Attributes:
        id: The id, such as "FrozenLake-v1".
        instructions: First line of each episode; the id by default.
        actions: Names of the actions of a discrete space, in order; their numbers by default.
    """

    id: str
    instructions: str | None = None
    actions: Sequence[str] | None = None

    def __call__(self, **arguments: Any) -> TextEnvironment:
        try:
            import gymnasium
        except ImportError:
            raise EnvError(
                "id needs the package gymnasium in the trainer's interpreter: pip install gymnasium"
            ) from None
        if ":" in self.id or self.id.startswith("GymV2"):  # they import the module that the id or an argument names
            raise EnvError(f"id={self.id!r}: expected an environment that Gymnasium lists; name one of yours with make")
        make = {"disable_env_checker": True, **arguments}
        try:
            wrapped = gymnasium.make(self.id, **make)
            if "ansi" in wrapped.metadata.get("render_modes", ()):
                wrapped.close()
                wrapped = gymnasium.make(self.id, render_mode="ansi", **make)
        except gymnasium.error.Error as error:
            raise EnvError(f"id={self.id!r}: {error}") from None
        except (TypeError, ValueError) as error:
            raise EnvError(f"id={self.id!r}, arguments={arguments!r}: {error}") from None
        self._check(gymnasium.spaces, wrapped)
        return TextEnvironment(wrapped, self.instructions or self.id, self._actions(gymnasium.spaces, wrapped))

    def _check(self, spaces: Any, wrapped: Any) -> None:
        if (problem := not_text(spaces, wrapped.observation_space)) is not None:
            raise EnvError(f"id={self.id!r}: its observations are {problem}, which is no text; {WRAP}")

    def _actions(self, spaces: Any, wrapped: Any) -> Mapping[str, Any] | None:
        """Return the actions by their texts; None if every text of the space is one."""
        space, names = wrapped.action_space, self.actions
        if not isinstance(space, spaces.Discrete | spaces.Text):
            raise EnvError(f"id={self.id!r}: its actions are {space}, neither discrete nor text; {WRAP}")
        if isinstance(space, spaces.Text):
            return None
        numbers = [int(space.start) + number for number in range(int(space.n))]
        if names is None:
            return {str(number): number for number in numbers}
        are_names = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
        texts = [name.strip().lower() for name in names] if are_names else []
        if len(texts) != len(numbers) or len(set(texts)) != len(numbers):
            raise EnvError(f"actions={names!r}: expected {len(numbers)} different names, one for each of its actions")
        return dict(zip(texts, numbers, strict=True))


class TextEnvironment:
    """An environment of Gymnasium whose observations and actions are text.

    Args:
        wrapped: The environment.
        instructions: First line of each episode.
        actions: Actions by their texts; None if actions are text.
    """

    def __init__(self, wrapped: Any, instructions: str, actions: Mapping[str, Any] | None) -> None:
        self._wrapped = wrapped
        self._instructions = instructions
        self._actions = actions

    def reset(self, *, seed: int) -> tuple[str, Any]:
        observed, info = self._wrapped.reset(seed=seed)
        return f"{self._instructions}\n\n{self._rendered(observed)}\n\n{self._request()}", info

    def step(self, text: str) -> tuple[str, float, bool, bool, Any]:
        """Take the action that a text is. Any other text has no effect, and the answer says what is accepted."""
        action = text if self._actions is None else self._actions.get(text.strip().lower())
        if action is None or (self._actions is None and not self._wrapped.action_space.contains(action)):
            return f"Error: {self._request()}", 0.0, False, False, {}
        observed, reward, terminated, truncated, info = self._wrapped.step(action)
        return self._rendered(observed), float(reward), terminated, truncated, info

    def close(self) -> None:
        self._wrapped.close()

    def _request(self) -> str:
        if self._actions is None:
            return f"Reply with an action: {self._wrapped.action_space}."
        texts = list(self._actions)
        if len(texts) > 20 and texts[0].isdecimal():
            return f"Reply with an action: a number from {texts[0]} to {texts[-1]}."
        return f"Reply with an action: {', '.join(texts[:-1])}{' or ' if texts[1:] else ''}{texts[-1]}."

    def _rendered(self, observed: Any) -> str:
        """Return the picture of the environment if it draws one in text, and the observation."""
        picture = self._wrapped.render() if self._wrapped.render_mode == "ansi" else None
        if isinstance(observed, str):
            return observed
        shown = f"Observation: {written(observed)}"
        return f"{without_colors(picture).strip(chr(10))}\n{shown}" if isinstance(picture, str) else shown


def not_text(spaces: Any, space: Any) -> str | None:
    """Return the part of a space that is not written as text: pictures and other large arrays, graphs, sequences."""
    if isinstance(space, spaces.Tuple | spaces.Dict):
        parts = space.values() if isinstance(space, spaces.Dict) else space
        return next((problem for part in parts if (problem := not_text(spaces, part)) is not None), None)
    if isinstance(space, spaces.Discrete | spaces.Text):
        return None
    small = isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary)
    return None if small and math.prod(space.shape) <= LARGEST_BOX else str(space)


def written(value: Any) -> str:
    """Return an observation in numbers and words; fractions have four digits."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {written(inner)}" for name, inner in value.items())
    if isinstance(value, tuple | list):
        return f"({', '.join(map(written, value))})"
    if hasattr(value, "tolist"):  # an array, or a number of numpy
        return written(value.tolist())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def without_colors(text: str) -> str:
    """Return a picture without the codes of a terminal: [X] for a character on a colored ground, X(red) for a red one.

    The position of the agent is often such a character.
    """

    def mark(match: re.Match[str]) -> str:
        codes = [int(code) for code in match[1].split(";") if code]
        if any(40 <= code <= 47 for code in codes):
            return f"[{match[2]}]"
        color = next((COLORS[code - 30] for code in codes if 30 <= code <= 37), None)
        return match[2] if color is None else f"{match[2]}({color})"

    while (plain := COLORED.sub(mark, text)) != text:  # from the inside to the outside
        text = plain
    return text
