"""The pool: a scheduler, slots, worker processes, their sandbox and the wire protocol."""
