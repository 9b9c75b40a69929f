"""A scripted policy that makes typical mistakes at given rates; without any it solves every task."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from seeupo.envs.pocket.apps import TOOLS, ActionError, Call
from seeupo.envs.pocket.decisions import ALL_KINDS
from seeupo.envs.pocket.kinds import Step
from seeupo.envs.pocket.natural import NaturalSurface
from seeupo.envs.pocket.tasks import draw_world, given_words
from seeupo.envs.pocket.terse import TerseSurface
from seeupo.envs.pocket.words import SORT_OF, words_of
from seeupo.types import StepResult, Task

Surface = NaturalSurface | TerseSurface

MISTAKE_RATES = {
    # Per episode: outdated information instead of current, or the channel that the contact ignores.
    "wrong_choice": 0.6,
    # Per call: one word is replaced by another of its sort.
    "wrong_word": 0.05,
    # Per lookup: it is skipped, and its result is guessed.
    "skipped_lookup": 0.05,
    # Per call: it is replaced by `decline` if that is offered, else by `done`.
    "stops_early": 0.05,
    # Per call: another tool that takes the same sorts of words. If it replaced a lookup, the lookup is retried.
    "wrong_tool": 0.05,
}
"""Default probabilities of a noisy expert's mistakes; most episodes then make the common wrong choice."""
NO_MISTAKES = dict.fromkeys(MISTAKE_RATES, 0.0)


class NoisyExpert:
    """Makes mistakes and continues from their consequences.

    It follows the solution in its own copy of the world, so it need not parse observations.
    """

    def __init__(self, task: Task, surface: Surface, rates: Mapping[str, float], generator: Random) -> None:
        self._surface = surface
        self._rates = rates
        self._generator = generator
        self._kind = ALL_KINDS[task.kind]
        self._world = draw_world(task.seed)
        self._left = list(self._kind.steps)
        self._wrong_slot = self._kind.choice if self._happens("wrong_choice") else None
        self._memory = self._kind.known(given_words(task), wrong_slot=self._wrong_slot)

    def __call__(self, _: StepResult) -> str:
        while self._left[0].learns and self._happens("skipped_lookup"):
            self._guess(self._left.pop(0))
        step = self._left[0]
        call = planned = step.call(self._memory)
        if len(self._left) > 1 and self._happens("stops_early"):
            return self._surface.write(Call("decline" if "decline" in self._surface.tools else "done"))
        similar = self._similar_tools(planned.tool)
        if similar and self._happens("wrong_tool"):
            call = Call(self._generator.choice(similar), planned.words)
        elif planned.words and self._happens("wrong_word"):
            call = self._with_another_word(planned)
        if self._advance(step, call, planned) and len(self._left) > 1:
            self._left.pop(0)
        return self._surface.write(call)

    def _advance(self, step: Step, call: Call, planned: Call) -> bool:
        """Make the call and return whether to continue with the next step instead of retrying this one."""
        try:
            facts = self._world.apply(call)
        except ActionError:
            if call != planned:
                return False
            self._guess(step)  # an earlier mistake has made this impossible
            return True
        if call.tool == planned.tool:
            step.learn(facts, self._memory, wrong_slot=self._wrong_slot)
            return True
        return not step.learns

    def _guess(self, step: Step) -> None:
        for slot, label in step.learns.items():
            self._memory[slot] = self._generator.choice(words_of(TOOLS[step.tool].tells[label]))

    def _similar_tools(self, tool: str) -> list[str]:
        takes = TOOLS[tool].takes
        return [other for other in self._surface.tools if other != tool and TOOLS[other].takes == takes]

    def _with_another_word(self, call: Call) -> Call:
        place = self._generator.randrange(len(call.words))
        others = [word for word in words_of(SORT_OF[call.words[place]]) if word != call.words[place]]
        return Call(call.tool, (*call.words[:place], self._generator.choice(others), *call.words[place + 1 :]))

    def _happens(self, mistake: str) -> bool:
        return self._generator.random() < self._rates[mistake]
