from click.testing import CliRunner

from agents.tokenizers_like import tokenizer_like
from seeupo.agents.chat import chat_format
from seeupo.cli import main
from seeupo.cli.token_view import spans
from seeupo.types import Trajectory, Turn

CHAT = chat_format(tokenizer_like("qwen2.5"))
END = CHAT.tokenizer.eos_token_id


def test_every_token_is_shown_once_and_in_its_kind():
    prompt = CHAT.encode("where is the cat?")
    first = (*CHAT.encode("<think>the mat</think>look"), END)
    again = prompt + CHAT.encode("look") + CHAT.encode(" on the mat")
    samples = (Turn("x", 0, prompt, first), Turn("x", 1, again, CHAT.encode("that")))
    turns = list(spans(Trajectory("x", "g", "t", samples, 1.0), CHAT))
    assert [[part.kind for part in turn] for turn in turns] == [
        ["prompt", "thought", "action"],
        ["repeated", "prompt", "action"],
    ]
    for turn, sample in zip(turns, samples, strict=True):
        assert sum(len(part.tokens) for part in turn) == len(sample.prompt_ids) + len(sample.action_ids)
        assert sum(len(part.tokens) for part in turn if part.trained) == len(sample.action_ids)
    assert "".join(turns[0][1].tokens) == "<think>the mat</think>"
    assert "".join(turns[0][2].tokens) == "look<|im_end|>"


def test_a_thought_that_is_never_closed_is_all_thought():
    sample = Turn("x", 0, CHAT.encode("cat?"), CHAT.encode("<think>the mat"))
    ((_, response),) = spans(Trajectory("x", "g", "t", (sample,), 0.0), CHAT)
    assert response.kind == "thought"


def test_the_command_prints_an_episode():
    done = CliRunner().invoke(main, ["agents", "show", "--env", "pocket", "--model", "tiny", "--max-turns", "2"])
    assert done.exit_code == 0, done.output
    for part in ("turn 1", "turn 2", "prompt", "trained on", "score 0"):
        assert part in done.output
