"""The claims of the paper, each measured on problems small enough to enumerate."""

from seeupo.studies.theory.setting import Scale
from seeupo.studies.theory.study import CLAIMS, measure
from seeupo.studies.theory.verdict import Check, Claim, Scope, Verdict

__all__ = ["CLAIMS", "Check", "Claim", "Scale", "Scope", "Verdict", "measure"]
