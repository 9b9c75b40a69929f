import json
import random
import zlib

from seeupo.report.chunks import CHUNK_ROWS, ChunkWriter


def bodies(rng, count, length=300):
    return [json.dumps(["".join(rng.choices("abcdefgh", k=length))]).encode() for _ in range(count)]


def test_every_body_is_at_its_location():
    rng, writer = random.Random(0), ChunkWriter()
    groups = [bodies(rng, size) for size in (1, 3, CHUNK_ROWS + 50, 2, 150, 60, 1)]
    locations = [writer.add(group, 10**9) for group in groups]
    writer.finish_chunk()
    found = [json.loads(zlib.decompress(content, 31)) for content in writer.chunks]
    assert len(found) == 3
    for group, (chunk, offset) in zip(groups, locations, strict=True):
        assert found[chunk][offset : offset + len(group)] == [json.loads(body) for body in group]
    assert sum(map(len, found)) == sum(map(len, groups))


def test_used_bytes_are_those_of_the_chunks():
    rng, writer = random.Random(0), ChunkWriter()
    for size in (1, 40, 170, 5):
        writer.add(bodies(rng, size), 10**9)
    writer.finish_chunk()
    assert writer.used == sum(map(len, writer.chunks))


def test_group_beyond_the_limit_is_not_written():
    rng = random.Random(0)
    small, large = bodies(rng, 2), bodies(rng, 50)
    one, other = ChunkWriter(), ChunkWriter()
    for writer in (one, other):
        assert writer.add(small, 2000) == (0, 0)
    assert one.add(large, 2000) is None
    assert one.used == other.used <= 2000
    for writer in (one, other):
        assert writer.add(small, 4000) == (0, 2)
        writer.finish_chunk()
    assert list(one.chunks) == list(other.chunks)


def test_no_groups_give_no_chunk():
    writer = ChunkWriter()
    writer.finish_chunk()
    assert (writer.used, list(writer.chunks)) == (0, [])
