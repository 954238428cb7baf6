"""Redoes a run from its journal, offline, and says what differs from what is on record.

Nothing of the run but its own files is opened, and nothing that it names is imported. Its programs run contained.
"""

from koderz.systems.publishing.verify.findings import Difference, Verification
from koderz.systems.publishing.verify.verification import verify_run

__all__ = ["Difference", "Verification", "verify_run"]
