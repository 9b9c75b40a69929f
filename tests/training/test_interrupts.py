"""The first Ctrl-C finishes the current step, the second stops at once."""

import os
import signal
import threading

import pytest

from seeupo.training.interrupts import Interrupted, interruptible


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_pauses_and_the_second_interrupts(number):
    notes, before = [], signal.getsignal(number)
    with interruptible(notes.append) as interruption:
        interruption.on_progress(1)
        os.kill(os.getpid(), number)
        assert len(notes) == 1
        with pytest.raises(Interrupted):
            interruption.on_iteration(1)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_signals_are_ignored_outside_the_main_thread():
    events = []

    def work():
        with interruptible(events.append) as interruption:
            interruption.on_progress(1)
            events.append("worked")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert events == ["worked"]
