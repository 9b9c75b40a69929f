from hypothesis import given
from hypothesis import strategies as st

from seeupo.utils.shuffling import ShuffledPasses


@given(st.integers(1, 40), st.integers(0, 5))
def test_each_pass_contains_every_item_once(count, passed):
    passes = ShuffledPasses(count, "seed")
    assert sorted(passes[place] for place in range(passed * count, (passed + 1) * count)) == list(range(count))


def test_position_depends_on_the_seed_only():
    forward = [ShuffledPasses(50, "a")[place] for place in range(200)]
    jumping = ShuffledPasses(50, "a")
    assert [jumping[place] for place in reversed(range(200))] == forward[::-1]
    assert forward[:50] != forward[50:100]
    assert forward[:50] != [ShuffledPasses(50, "b")[place] for place in range(50)]
