"""The first Ctrl-C finishes the current step, the second stops at once."""

import os
import signal
import threading

import pytest

from seeupo.training.interrupts import interruptible
from seeupo.training.loop import Interrupted


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_pauses_and_the_second_interrupts(number):
    notes, before = [], signal.getsignal(number)
    with interruptible(notes.append) as pause:
        pause()
        os.kill(os.getpid(), number)
        assert len(notes) == 1
        with pytest.raises(Interrupted):
            pause()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_signals_are_ignored_outside_the_main_thread():
    events = []

    def work():
        with interruptible(events.append) as pause:
            pause()
            events.append("worked")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert events == ["worked"]
