"""Scripted players: one that solves every task, one that makes the usual mistakes, and one that acts at random."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from random import Random

from seeupo.envs.pocket.kinds import KINDS, Step
from seeupo.envs.pocket.surface import Surface
from seeupo.envs.pocket.tasks import draw_world, given_words
from seeupo.envs.pocket.words import SORT_OF, words_of
from seeupo.envs.pocket.world import TOOLS, ActionError, Call
from seeupo.types import Expert, StepResult, Task


@dataclass(frozen=True, kw_only=True)
class MistakeRates:
    """How often a noisy expert goes wrong. By default most of its episodes take the common wrong choice.

    Attributes:
        wrong_choice: once an episode: what is out of date instead of what counts now, the channel nobody reads.
        wrong_word: per call: one word is replaced by another of its sort.
        skipped_lookup: per lookup: it is left out, and what it would have said is guessed.
        stops_early: per call: `decline` where that is offered, otherwise `done`, takes its place.
        wrong_tool: per call: another tool that takes the same sorts of words. After a lookup the right one follows.
    """

    wrong_choice: float = 0.6
    wrong_word: float = 0.05
    skipped_lookup: float = 0.05
    stops_early: float = 0.05
    wrong_tool: float = 0.05

    def __post_init__(self) -> None:
        for name, rate in asdict(self).items():
            if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= 1:
                raise ValueError(f"{name} is {rate!r}; it must be a number in [0, 1]")


NO_MISTAKES = MistakeRates(wrong_choice=0, wrong_word=0, skipped_lookup=0, stops_early=0, wrong_tool=0)


def scripted_expert(task: Task, surface: Surface) -> Expert:
    """Solves the task."""
    return noisy_expert(task, surface, NO_MISTAKES, Random(0))


def noisy_expert(task: Task, surface: Surface, rates: MistakeRates, generator: Random) -> Expert:
    """Sets out to solve the task, makes mistakes, and goes on with what they led to."""
    return _Player(task, surface, rates, generator)


def random_policy(surface: Surface, generator: Random) -> Expert:
    """Calls any tool that is offered with any words that it takes."""

    def act(_: StepResult) -> str:
        tool = generator.choice(surface.tools)
        spec = TOOLS[tool]
        if spec.optional and generator.random() < 0.5:
            return surface.write(Call(tool))
        return surface.write(Call(tool, tuple(generator.choice(words_of(sort)) for sort in spec.takes)))

    return act


class _Player:
    """Plays in a world of its own beside the real one, so it need not read what the surface shows."""

    def __init__(self, task: Task, surface: Surface, rates: MistakeRates, generator: Random) -> None:
        self._surface = surface
        self._rates = rates
        self._generator = generator
        self._kind = KINDS[task.kind]
        self._memory = given_words(task)
        self._world = draw_world(task.seed)
        self._left = list(self._kind.steps)
        self._tempted = self._kind.choice if self._happens(rates.wrong_choice) else None

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
        if self._play(step, call, planned) and len(self._left) > 1:
            self._left.pop(0)
        return self._surface.write(call)

    def _play(self, step: Step, call: Call, planned: Call) -> bool:
        """Make the call; whether to go on to the next step, rather than to try this one again."""
        try:
            facts = self._world.apply(call)
        except ActionError:
            if call != planned:
                return False
            self._guess(step)  # an earlier mistake has made this impossible
            return True
        if call.tool == planned.tool:
            step.learn(facts, self._memory, tempted=self._tempted)
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
