import io

from click.testing import CliRunner

from rollout.tokenizers_like import tokenizer_like
from seeupo.cli import main
from seeupo.cli.terminal import Terminal
from seeupo.cli.token_view import print_tokens, token_segments
from seeupo.rollout.chat import chat_format
from seeupo.types import Failure, FailureKind, Trajectory, Turn

CHAT = chat_format(tokenizer_like("qwen2.5"))
END = CHAT.tokenizer.eos_token_id


def test_segments_contain_every_token_once_by_kind():
    prompt = CHAT.encode("where is the cat?")
    first = (*CHAT.encode("<think>the mat</think>look"), END)
    again = prompt + CHAT.encode("look") + CHAT.encode(" on the mat")
    turns = (Turn("x", 0, prompt, first), Turn("x", 1, again, CHAT.encode("that")))
    found = list(token_segments(Trajectory("x", "g", "t", turns, 1.0), CHAT))
    assert [[segment.kind for segment in segments] for segments in found] == [
        ["prompt", "thought", "action"],
        ["repeated", "prompt", "action"],
    ]
    for segments, turn in zip(found, turns, strict=True):
        assert sum(len(segment.tokens) for segment in segments) == len(turn.prompt_ids) + len(turn.action_ids)
        assert sum(len(segment.tokens) for segment in segments if segment.trained) == len(turn.action_ids)
    assert "".join(found[0][1].tokens) == "<think>the mat</think>"
    assert "".join(found[0][2].tokens) == "look<|im_end|>"


def test_unclosed_thought_is_thought_to_the_end():
    turn = Turn("x", 0, CHAT.encode("cat?"), CHAT.encode("<think>the mat"))
    ((_, response),) = token_segments(Trajectory("x", "g", "t", (turn,), 0.0), CHAT)
    assert response.kind == "thought"


def test_failed_episode_has_no_score():
    turn = Turn("x", 0, CHAT.encode("cat?"), CHAT.encode("that"))
    failed = Trajectory("x", "g", "t", (turn,), 0.0, failure=Failure(FailureKind.WORKER_LOST, "worker killed"))
    output = io.StringIO()
    print_tokens(failed, CHAT, Terminal(file=output))
    assert "worker killed" in output.getvalue()
    assert "no score" in output.getvalue()


def test_show_command_prints_an_episode():
    done = CliRunner().invoke(main, ["agents", "show", "--env", "pocket", "--model", "tiny", "--max-turns", "2"])
    assert done.exit_code == 0, done.output
    for part in ("turn 1", "turn 2", "prompt", "trained on", "score 0"):
        assert part in done.output
