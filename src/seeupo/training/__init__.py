"""Training runs: the loop, its setup, warm start, metrics, alarms, callbacks and trackers."""
