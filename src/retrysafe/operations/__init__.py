"""Operations: work that calls other systems, in steps that survive a crash at any instruction. With undos: sagas."""

from __future__ import annotations

from retrysafe.operations.errors import StepFailed, Stop, Undo
from retrysafe.operations.operation import Operation
from retrysafe.operations.submission import Accepted
from retrysafe.transactions.staging import stage

__all__ = ["Accepted", "Operation", "StepFailed", "Stop", "Undo", "stage"]
