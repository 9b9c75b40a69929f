"""The first Ctrl-C asks, the second insists."""

import os
import signal
import threading

import pytest

from seeupo.training.interrupts import interruptible
from seeupo.training.loop import Interrupted


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_asks_and_the_second_insists(number):
    told, before = [], signal.getsignal(number)
    with interruptible(told.append) as pause:
        pause()
        os.kill(os.getpid(), number)
        assert len(told) == 1
        with pytest.raises(Interrupted):
            pause()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_outside_the_main_thread_nothing_is_heard_and_nothing_breaks():
    found = []

    def work():
        with interruptible(found.append) as pause:
            pause()
            found.append("worked")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == ["worked"]
