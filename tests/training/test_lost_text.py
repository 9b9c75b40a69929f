"""Runs and files whose texts the tokenizer loses are refused before anything is trained on them."""

import json

import pytest

from models.test_loading import saved, with_full_vocabulary
from models.test_tokenizer_check import without_unknown_token
from seeupo.errors import DemonstrationFileError, ModelError
from seeupo.rollout.chat import chat_format
from seeupo.rollout.template import Template
from seeupo.training.data_check import check_data
from seeupo.training.demonstrations import read_chat_demonstrations
from seeupo.training.setup import build
from seeupo.training.warm_start import load_demonstrations
from seeupo.types import Message, StepResult, Task
from training.small_runs import small

ASCII = [chr(number) for number in range(33, 127)]


class OneQuestion:
    """An environment with one prompt and one right action."""

    splits = ("train", "test")

    def __init__(self, prompt, action):
        self.prompt, self.action = prompt, action

    def tasks(self, split):
        return (Task(f"{split}-1", split),)

    def make(self):
        return self

    def expert(self, task):
        return lambda result: self.action

    def vocabulary(self):
        return (*self.prompt.split(), "yes")

    def reset(self, task, *, seed):
        return StepResult((Message("user", self.prompt),))

    def step(self, text):
        return StepResult((), terminated=True)

    def score(self):
        return 1.0

    def close(self):
        pass


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model folder whose tokenizer keeps ASCII only."""
    return saved(tmp_path_factory.mktemp("model"), with_full_vocabulary("llama"), without_unknown_token(ASCII))


def demonstrations_of(environment, **model):
    recipe = small(model=model, environment={"options": {}}, warm_start={"mistakes": {}, "noisy": 0.0, "episodes": 2})
    with build(recipe, environment) as components:
        return load_demonstrations(components).demonstrations


def test_a_run_is_refused_if_its_first_prompt_or_action_is_lost(model):
    assert len(demonstrations_of(OneQuestion("Is 2 > 1?", "yes"), name=model)) == 2
    with pytest.raises(
        ModelError, match=r"^the first prompt of .*: the tokenizer .* loses text: 'is it große\?' becomes"
    ):
        demonstrations_of(OneQuestion("is it große?", "yes"), name=model)
    with pytest.raises(ModelError, match=r"^the first action of the expert of .* loses text: 'größer' becomes"):
        demonstrations_of(OneQuestion("Is 2 > 1?", "größer"), name=model)


def test_a_run_warns_if_the_expert_uses_unknown_words():
    assert len(demonstrations_of(OneQuestion("Is 2 > 1?", "yes"))) == 2
    with pytest.warns(UserWarning, match=r"the first action of the expert of .* does not know all of its words"):
        demonstrations_of(OneQuestion("Is 2 > 1?", "surely"))


def test_conversations_that_lose_text_are_refused_with_their_line(tmp_path, model):
    path = tmp_path / "pairs.jsonl"
    rows = [{"prompt": "gut", "completion": "fein"}, {"prompt": "größer", "completion": "gut"}]
    path.write_text("\n".join(map(json.dumps, rows)))
    chat = chat_format(without_unknown_token(ASCII))
    with pytest.raises(DemonstrationFileError, match=r"line 2: the tokenizer .* loses text: 'größer' becomes"):
        list(read_chat_demonstrations(path, chat, Template(reasoning=False), context=1000))
    with pytest.raises(DemonstrationFileError, match=r"line 2: the tokenizer .* loses text"):
        check_data(path, model=model, plain=True)
