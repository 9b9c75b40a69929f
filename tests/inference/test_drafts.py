import random

from hypothesis import given
from hypothesis import strategies as st

from seeupo.inference.drafts import MAX_DRAFT, MAX_ROWS, PASS_TOKENS, DraftHistory, Drafts

TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=30)


def learned(drafts: Drafts, prompt, action) -> DraftHistory:
    history = DraftHistory(prompt)
    for token in action:
        drafts.observe(history, token)
    return history


@given(rollouts=st.lists(st.tuples(TOKENS, TOKENS), max_size=6), limits=st.lists(st.integers(0, 40), min_size=7))
def test_drafts_keep_their_limits_change_no_history_and_are_repeatable(rollouts, limits):
    drafts = Drafts()
    histories = [learned(drafts, prompt, action) for prompt, action in rollouts]
    before = [(list(history.tokens), bytes(history.bytes), history.path) for history in histories]
    proposed = drafts.propose(histories, limits[: len(histories)])
    assert [(history.tokens, bytes(history.bytes), history.path) for history in histories] == before
    assert drafts.propose(histories, limits[: len(histories)]) == proposed
    for draft, limit, (prompt, action) in zip(proposed, limits, rollouts, strict=False):
        assert len(draft) <= min(limit, MAX_DRAFT)
        assert all(0 < guess.chance < 1 for guess in draft)
        seen = {token for _, other in rollouts for token in other}
        assert all(guess.token in seen | set(prompt) | set(action) for guess in draft)


def naively_copied(tokens, order):
    starts = range(len(tokens) - order - 1, -1, -1)
    return next((tokens[start + order] for start in starts if tokens[start : start + order] == tokens[-order:]), None)


@given(tokens=st.lists(st.sampled_from([0, 1, 256, 65536, 2**40]), min_size=1, max_size=12), order=st.integers(1, 3))
def test_the_latest_occurrence_of_an_ngram_is_copied(tokens, order):
    expected = naively_copied(tokens, order) if len(tokens) >= order else None
    assert DraftHistory(tokens).copied(order) == expected


def test_a_repeated_rollout_is_drafted_to_its_end():
    drafts, generator = Drafts(), random.Random(0)
    prompt, action = (1, 2, 3), generator.choices(range(1000), k=12)
    for _ in range(8):
        learned(drafts, prompt, action)
    (draft,) = drafts.propose([DraftHistory(prompt)], [100])
    assert [guess.token for guess in draft] == action


def test_fewer_tokens_are_drafted_in_larger_batches():
    drafts = Drafts()
    for _ in range(3):
        learned(drafts, (1, 2, 3), range(10, 20))
    lengths = [
        len(drafts.propose([DraftHistory((1, 2, 3)) for _ in range(rows)], [100] * rows)[0])
        for rows in (1, PASS_TOKENS, MAX_ROWS + 1)
    ]
    assert lengths[0] > lengths[1] > lengths[2] == 0


def test_guesses_that_are_never_right_stop_being_drafted():
    drafts = Drafts()
    learned(drafts, (1, 2, 3), (4,))
    histories = [DraftHistory((1, 2, 3)) for _ in range(8)]
    for _ in range(100):
        for draft in (draft for draft in drafts.propose(histories, [1] * 8) if draft):
            drafts.check(draft[0], sampled=9)
    assert drafts.propose(histories, [1] * 8) == [[]] * 8
    drafts.clear()
    learned(drafts, (1, 2, 3), (4,))
    assert [guess.token for guess in drafts.propose(histories, [1] * 8)[0]] == [4]
