"""Progress displays, shared by the command line and by `seeupo.train`.

They are callbacks, so they are above `training`. `api` shows them as well as `cli`, so they are below both.
"""
