"""AppWorld: everyday tasks in nine simulated apps, solved by writing Python code.

The engine of the `appworld` package runs in fresh processes for every episode, inside the worker's sandbox, which
contains no answers: one owns the apps and their databases, another runs the model's code and can only call the APIs.
A second worker scores episodes from the changes that the APIs have made.
"""
