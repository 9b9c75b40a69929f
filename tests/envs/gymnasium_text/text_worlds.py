"""Small text environments in Gymnasium's style, for tests of the adapter."""

import random

from seeupo import expert_maker


class Coin:
    """Guess the side of a coin, drawn from the global generator at every step, as many environments do."""

    def __init__(self, tosses=4):
        self.tosses = tosses
        self.closed = False

    def reset(self, *, seed=None):
        self.left = self.tosses
        return f"{self.tosses} tosses", {"seed": seed, "object": self, "bad": float("nan")}

    def step(self, action):
        self.left -= 1
        side = random.choice(["heads", "tails"])
        return f"{side}, and you said {action}", float(action == side), self.left == 0, False, {"left": self.left}

    def close(self):
        self.closed = True


class Fixed:
    """Returns fixed answers."""

    def __init__(self, reset=("text", {}), step=("text", 0.0, False, False, {})):
        self.answers = reset, step

    def reset(self, *, seed=None):
        return self.answers[0]

    def step(self, action):
        return self.answers[1]


class Scripted(Fixed):
    """Pays 0.25, 0.125 and then 0.5 with the end of the episode."""

    def reset(self, *, seed=None):
        self.rewards = [0.25, 0.125, 0.5]
        return "start", {}

    def step(self, action):
        return "text", self.rewards.pop(0), not self.rewards, False, {}


@expert_maker
def always_heads(task):
    return lambda result: "heads"


NOT_CALLABLE = 3
