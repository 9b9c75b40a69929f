import signal

import torch

torch.set_num_threads(1)

# A shell that runs the tests in the background has them ignore interrupts, and with them all programs that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
