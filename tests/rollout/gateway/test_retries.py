"""Programs whose clients go away before they have an answer, and send the request again."""

import http.client
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

from rollout.gateway.scripted import ScriptedSampler, one_path, run
from waiting import wait_until

BODY = {"model": "policy", "messages": [{"role": "user", "content": "hi"}]}
RETRY = {"x-stainless-retry-count": "1"}
ANSWERS = ("first", "second", "third")


class Paused(ScriptedSampler):
    """Samples only after `resume`, and says when it has begun."""

    def __init__(self, *script):
        super().__init__(*script)
        self.begun, self.resumed = threading.Event(), threading.Event()

    def poll(self):
        self.begun.set()
        assert self.resumed.wait(120)
        return super().poll()


class Requests:
    """Sends requests as a client of an episode, without any library that repeats them."""

    def __init__(self, client):
        self.url = urlsplit(str(client.base_url))
        self.key = client.api_key

    def send(self, *, receive_buffer=None, headers=(), **body):
        """Send a request and return the connection before its response."""
        connection = http.client.HTTPConnection(self.url.hostname, self.url.port)
        if receive_buffer is not None:
            connection.sock = socket.socket()
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            connection.sock.connect((self.url.hostname, self.url.port))
        headers = {"Authorization": f"Bearer {self.key}", **dict(headers)}
        connection.request("POST", f"{self.url.path}chat/completions", json.dumps({**BODY, **body}), headers)
        return connection

    def text(self, connection):
        """Return the text of a response, streamed or not."""
        body = connection.getresponse().read().decode()
        connection.close()
        for line in body.splitlines():
            if line.startswith(("data: {", "{")):
                choice = json.loads(line.removeprefix("data: "))["choices"][0]
                return choice.get("message", choice.get("delta"))["content"]
        raise AssertionError(body)


def arrived(sampler):
    """Return the number of requests of the only episode."""
    return sum(len(generation.waiting) for generation in generations(sampler))


def generations(sampler):
    """Return the calls of the only episode."""
    (episode,) = sampler.gateway._episodes.values()
    return episode.generations


def episode(solve, sampler, **settings):
    """Run one episode with a sampler that knows its gateway."""
    return run(solve, sampler=sampler, **settings)["a"]


@pytest.mark.parametrize("headers", [{}, RETRY], ids=["unmarked", "marked"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("repeated", ["before it is noticed", "while it is sampled", "when it is recorded"])
def test_a_request_that_is_repeated_after_a_disconnect_continues_the_recorded_generation(stream, headers, repeated):
    sampler = Paused(*ANSWERS)

    def solve(task, client):
        requests = Requests(client)
        lost = requests.send(stream=stream)
        sampler.begun.wait()
        lost.close()
        (generation,) = generations(sampler)
        if repeated == "before it is noticed":
            again = requests.send(stream=stream, headers=headers)
            sampler.resumed.set()
        else:
            wait_until(lambda: generation.is_lost)
        if repeated == "while it is sampled":
            again = requests.send(stream=stream, headers=headers)
            wait_until(lambda: arrived(sampler) == 2)
            sampler.resumed.set()
        elif repeated == "when it is recorded":
            sampler.resumed.set()
            wait_until(lambda: generation.answer is not None)
            again = requests.send(stream=stream, headers=headers)
        assert requests.text(again) == "first"
        history = [*BODY["messages"], {"role": "assistant", "content": "first"}, {"role": "user", "content": "and?"}]
        assert requests.text(requests.send(messages=history)) == "second"
        return 1.0

    trajectory = episode(solve, sampler)
    assert trajectory.failure is None
    assert [text.response for text in trajectory.turn_texts] == ["first", "second"]
    assert len(sampler.requests) == 2
    assert [turn.index for turn in trajectory.turns] == [0, 1]
    assert one_path(trajectory) == [True]


def test_a_retry_of_a_call_in_flight_shares_its_answer():
    sampler = Paused(*ANSWERS)

    def solve(task, client):
        requests = Requests(client)
        first = requests.send()
        sampler.begun.wait()
        again = requests.send(headers=RETRY)
        wait_until(lambda: arrived(sampler) == 2)
        sampler.resumed.set()
        assert requests.text(first) == requests.text(again) == "first"
        return 1.0

    trajectory = episode(solve, sampler)
    assert trajectory.failure is None
    assert (len(trajectory.turns), len(sampler.requests)) == (1, 1)


def test_a_retry_continues_the_call_whose_client_went_away():
    """And not the identical one that is still in flight."""
    sampler = Paused(*ANSWERS)

    def solve(task, client):
        requests = Requests(client)
        lost = requests.send()
        sampler.begun.wait()
        other = requests.send()
        wait_until(lambda: arrived(sampler) == 2)
        lost.close()
        wait_until(lambda: generations(sampler)[0].is_lost)
        again = requests.send(headers=RETRY)
        wait_until(lambda: arrived(sampler) == 3)
        sampler.resumed.set()
        assert {requests.text(other), requests.text(again)} == {"first", "second"}
        return 1.0

    trajectory = episode(solve, sampler)
    assert trajectory.failure is None
    assert (len(trajectory.turns), len(sampler.requests)) == (2, 2)


def test_identical_calls_are_separate_in_parallel_and_one_after_another():
    sampler = ScriptedSampler(*ANSWERS)

    def solve(task, client):
        requests = Requests(client)
        with ThreadPoolExecutor(2) as executor:
            texts = list(executor.map(requests.text, [requests.send(), requests.send()]))
        assert sorted(texts) == ["first", "second"]
        assert requests.text(requests.send()) == "third"
        return 1.0

    trajectory = episode(solve, sampler)
    assert trajectory.failure is None
    assert [text.response for text in trajectory.turn_texts] == list(ANSWERS)
    assert len({request.seed for request in sampler.requests}) == 3


def test_a_stream_that_is_cut_continues_the_recorded_generation():
    """The stream is longer than the buffers of both ends, so the server notices."""
    answer = "x" * 50_000
    sampler = ScriptedSampler(answer, "second")

    def solve(task, client):
        requests = Requests(client)
        cut = requests.send(stream=True, logprobs=True, receive_buffer=4096)
        assert cut.getresponse().read(1000)
        cut.sock.close()
        cut.close()
        (generation,) = generations(sampler)
        wait_until(lambda: generation.is_lost)
        assert requests.text(requests.send(stream=True, logprobs=True)) == answer
        return 1.0

    trajectory = episode(solve, sampler, max_tokens=60_000)
    assert trajectory.failure is None
    assert (len(trajectory.turns), len(sampler.requests)) == (1, 1)


def test_a_call_whose_client_went_away_for_good_is_no_turn():
    sampler = Paused("lost", *ANSWERS[1:])

    def solve(task, client):
        requests = Requests(client)
        lost = requests.send()
        sampler.begun.wait()
        lost.close()
        wait_until(lambda: generations(sampler)[0].is_lost)
        sampler.resumed.set()
        requests.text(requests.send(messages=[{"role": "user", "content": "another"}]))
        return 1.0

    trajectory = episode(solve, sampler)
    assert trajectory.failure is None
    assert [turn.index for turn in trajectory.turns] == [0]
    assert trajectory.opening == "another"
    assert sampler.requests[1].seed == sampler.requests[0].seed
