"""AppWorld: everyday tasks in nine simulated apps, solved by writing Python code.

The engine of the `appworld` package runs behind its own server, in a fresh process for every episode, inside the
worker's sandbox, which contains no answers. Another worker scores episodes from the state that they leave behind.
"""
