"""Scripted policies: an expert, and a noisy expert that makes typical mistakes."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from seeupo.envs.pocket.apps import TOOLS, ActionError, Call
from seeupo.envs.pocket.decisions import ALL_KINDS
from seeupo.envs.pocket.kinds import Step
from seeupo.envs.pocket.surface import Surface
from seeupo.envs.pocket.tasks import draw_world, given_words
from seeupo.envs.pocket.words import SORT_OF, words_of
from seeupo.protocols import Expert
from seeupo.types import StepResult, Task


@dataclass(frozen=True, kw_only=True)
class MistakeRates:
    """Probabilities of a noisy expert's mistakes. By default most episodes make the common wrong choice.

    Attributes:
        wrong_choice: Per episode: outdated information instead of current, or the channel that the contact ignores.
        wrong_word: Per call: one word is replaced by another of its sort.
        skipped_lookup: Per lookup: it is skipped, and its result is guessed.
        stops_early: Per call: it is replaced by `decline` if that is offered, else by `done`.
        wrong_tool: Per call: another tool that takes the same sorts of words. If it replaced a lookup, the lookup is
            retried.
    """

    wrong_choice: float = 0.6
    wrong_word: float = 0.05
    skipped_lookup: float = 0.05
    stops_early: float = 0.05
    wrong_tool: float = 0.05


NO_MISTAKES = MistakeRates(wrong_choice=0, wrong_word=0, skipped_lookup=0, stops_early=0, wrong_tool=0)


def scripted_expert(task: Task, surface: Surface) -> Expert:
    """Return an expert that solves the task."""
    return NoisyExpert(task, surface, NO_MISTAKES, Random(0))


class NoisyExpert:
    """Makes mistakes and continues from their consequences.

    It follows the solution in its own copy of the world, so it need not parse observations.
    """

    def __init__(self, task: Task, surface: Surface, rates: MistakeRates, generator: Random) -> None:
        self._surface = surface
        self._rates = rates
        self._generator = generator
        self._kind = ALL_KINDS[task.kind]
        self._world = draw_world(task.seed)
        self._left = list(self._kind.steps)
        self._wrong_slot = self._kind.choice if self._happens(rates.wrong_choice) else None
        self._memory = self._kind.known(given_words(task), wrong_slot=self._wrong_slot)

    def __call__(self, _: StepResult) -> str:
        while self._left[0].learns and self._happens(self._rates.skipped_lookup):
            self._guess(self._left.pop(0))
        step = self._left[0]
        call = planned = step.call(self._memory)
        if len(self._left) > 1 and self._happens(self._rates.stops_early):
            return self._surface.write(Call("decline" if "decline" in self._surface.tools else "done"))
        similar = self._similar_tools(planned.tool)
        if similar and self._happens(self._rates.wrong_tool):
            call = Call(self._generator.choice(similar), planned.words)
        elif planned.words and self._happens(self._rates.wrong_word):
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

    def _happens(self, rate: float) -> bool:
        return self._generator.random() < rate
