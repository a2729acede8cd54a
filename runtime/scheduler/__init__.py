"""Which tokens run in the next step: admission, chunked prefill, preemption, and the step's arrays."""

from runtime.scheduler.batch import BatchTable, Chunk
from runtime.scheduler.scheduler import Scheduler, SchedulerConfig, StepPlan
from runtime.scheduler.sequence import Sequence, SequenceStatus

__all__ = ["BatchTable", "Chunk", "Scheduler", "SchedulerConfig", "Sequence", "SequenceStatus", "StepPlan"]
