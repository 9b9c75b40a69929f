import json
import math
import zlib

import pytest

from seeupo.report.packing import gzipped_json, json_bytes, rounded
from seeupo.utils.numbers import finite_number


@pytest.mark.parametrize("value", [None, "1", True, math.nan, math.inf, -math.inf, [1], 10**400])
def test_values_other_than_finite_numbers_become_none(value):
    assert finite_number(value) is None
    assert rounded(value) is None


def test_numbers_are_rounded_to_significant_digits():
    assert rounded(-2.781517949836592) == -2.7815
    assert rounded(1.23456789e-7) == 1.2346e-07
    assert rounded(0.123456789, 8) == 0.12345679
    assert str(rounded(-0.0)) == "0.0"


def test_lone_surrogates_are_replaced():
    assert json.loads(json_bytes(["a\ud83d", "\udc00b", "🙂", "\x00"])) == ["a\ufffd", "\ufffdb", "🙂", "\x00"]


def test_gzip_output_is_reproducible():
    content = gzipped_json({"a": [1, None, "é"]})
    assert content == gzipped_json({"a": [1, None, "é"]})
    assert content[4:8] == bytes(4)
    assert json.loads(zlib.decompress(content, 31)) == {"a": [1, None, "é"]}
