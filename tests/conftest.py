"""One thread per process: tests run in parallel, and sums over several threads differ in the last digits."""

import os
import signal

os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start

import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)

# No test may depend on the speed of the machine.
settings.register_profile(
    "any machine",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("any machine")

# A shell that runs the tests in the background has them ignore interrupts, and with them all programs that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
