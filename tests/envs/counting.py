"""A counting environment for tests of rollouts."""

from seeupo.types import Message, StepResult, Task


class CountingEnv:
    """Solved by the action "up", repeated as often as the task says, and "stop"; "break it" raises."""

    def reset(self, task, *, seed):
        self.wanted, self.said = task.payload["wanted"], 0
        return StepResult((Message("user", f"say up {self.wanted} times, then stop"),))

    def step(self, text):
        if text == "break it":
            raise RuntimeError("broken")
        self.said += text == "up"
        return StepResult((Message("user", str(self.said)),), terminated=text == "stop", truncated=text == "")

    def score(self):
        return float(self.said == self.wanted)

    def close(self): ...


class CountingFactory:
    splits = ("easy", "odd")

    def __init__(self, *, broken_task=None, help_wanted=True):
        self.broken_task, self.help_wanted = broken_task, help_wanted

    def tasks(self, split):
        return tuple(Task(f"{split}-{n}", split, payload={"wanted": n}) for n in range(1, 6 if split == "easy" else 3))

    def make(self):
        return CountingEnv()

    def expert(self, task):
        if not self.help_wanted:
            return None
        actions = iter(["up"] * task.payload["wanted"] + ["stop"])
        return lambda result: "break it" if task.id == self.broken_task else next(actions)
