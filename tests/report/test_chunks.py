import io
import json
import random
import zlib

from seeupo.report.chunks import BLOCK_COST, BLOCK_ROWS, Blocks
from seeupo.report.packing import base64_size


def bodies(draw, count, length=300):
    return [json.dumps(["".join(draw.choices("abcdefgh", k=length))]).encode() for _ in range(count)]


def test_every_body_is_where_it_was_said_to_be():
    draw, blocks = random.Random(0), Blocks(io.BytesIO())
    groups = [bodies(draw, size) for size in (1, 3, BLOCK_ROWS + 50, 2, 150, 60, 1)]
    places = [blocks.add(group, 10**9) for group in groups]
    blocks.close()
    found = [json.loads(zlib.decompress(content, 31)) for content in blocks.read()]
    assert len(found) == 3
    for group, (block, place) in zip(groups, places, strict=True):
        assert found[block][place : place + len(group)] == [json.loads(body) for body in group]
    assert sum(map(len, found)) == sum(map(len, groups))


def test_used_is_never_less_than_what_it_takes():
    draw, blocks = random.Random(0), Blocks(io.BytesIO())
    for size in (1, 40, 170, 5):
        blocks.add(bodies(draw, size), 10**9, elsewhere=7)
    before = blocks.used
    blocks.close()
    assert blocks.used == before
    real = sum(base64_size(len(content)) + BLOCK_COST for content in blocks.read()) + 4 * 7
    assert real <= blocks.used <= real + 2 * 60


def test_a_group_beyond_the_limit_leaves_no_trace():
    draw = random.Random(0)
    small, large = bodies(draw, 2), bodies(draw, 50)
    one, other = Blocks(io.BytesIO()), Blocks(io.BytesIO())
    for blocks in (one, other):
        assert blocks.add(small, 2000) == (0, 0)
    assert one.add(large, 2000) is None
    assert one.add(small, 2000, elsewhere=2000) is None
    assert one.used == other.used <= 2000
    for blocks in (one, other):
        assert blocks.add(small, 4000) == (0, 2)
        blocks.close()
    assert list(one.read()) == list(other.read())


def test_without_a_group_there_is_no_block():
    blocks = Blocks(io.BytesIO())
    blocks.close()
    assert (blocks.used, list(blocks.read())) == (0, [])
