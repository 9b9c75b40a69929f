"""The claims of the paper, each measured on problems small enough to enumerate."""

from studies.theory.setting import Scale
from studies.theory.study import CLAIMS, measure
from studies.theory.verdict import Check, Claim, Scope, Verdict

__all__ = ["CLAIMS", "Check", "Claim", "Scale", "Scope", "Verdict", "measure"]
