"""One thread per process: tests run in parallel, and sums over several threads differ in the last digits."""

import os
import signal

os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start

import torch

torch.set_num_threads(1)

# A shell that runs the tests in the background has them ignore interrupts, and with them all programs that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
