"""The machine as one record, for everyone who asks: preflight, store, builder, doctor. Never imports torch."""

from __future__ import annotations

import platform
from dataclasses import dataclass

from trtforge.machine.gpus import Gpu, architectures, gpus, visible_gpus
from trtforge.machine.memory import memory
from trtforge.machine.processor import Processor, cores, processor
from trtforge.machine.software import libc, python_version

#: a processor of which nothing is known
UNKNOWN = Processor("", frozenset())


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine, as far as anything here depends on it.

    Attributes:
        memory_total: bytes that this process may have at most (the machine's, or its control group's).
        memory_available: bytes of it that are free.
        cores: logical processors that this process may use at once.
        gpus: the GPUs that CUDA in this process would see.
        no_gpus: why the driver shows none; empty where it shows some (CUDA_VISIBLE_DEVICES may hide them).
        arch: ``x86_64``, ``aarch64``.
        python: ``3.11``.
        libc: ``glibc 2.36``; empty where it does not say.
    """

    memory_total: int
    memory_available: int
    cores: int
    processor: Processor = UNKNOWN
    gpus: tuple[Gpu, ...] = ()
    no_gpus: str = ""
    arch: str = ""
    system: str = ""
    python: str = ""
    libc: str = ""

    @property
    def architectures(self) -> tuple[str, ...]:
        """The architectures of the visible GPUs, without duplicates."""
        return architectures(self.gpus)


def this_machine() -> Machine:
    has = memory()
    return Machine(
        memory_total=has.total,
        memory_available=has.available,
        cores=cores(),
        processor=processor(),
        gpus=visible_gpus(),
        no_gpus=gpus().lacking,
        arch=platform.machine(),
        system=platform.system(),
        python=python_version(),
        libc=libc(),
    )


def machine_facts() -> dict[str, str | int]:
    """What a reader of measured times has to know: processor, its level, logical processors, bytes of memory."""
    here = this_machine()
    return {
        "cpu": here.processor.name,
        "capability": here.processor.capability,
        "cpus": here.cores,
        "memory": here.memory_total,
    }
