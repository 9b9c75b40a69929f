from hypothesis import given
from hypothesis import strategies as st

from seeupo.utils.sequences import common_prefix_length


@given(st.text("ab"), st.text("ab"))
def test_common_prefix_is_the_longest_one(one, other):
    length = common_prefix_length(one, other)
    assert one[:length] == other[:length]
    assert length in (len(one), len(other)) or one[length] != other[length]
