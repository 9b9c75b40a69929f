"""AppWorld: a day's errands in nine simulated apps, done by writing Python code.

Runs the engine of the `appworld` package over its own server, a fresh process for every episode, inside the worker's
sandbox, where no answer is in sight. Episodes are scored elsewhere, from the state that they leave behind.
"""
