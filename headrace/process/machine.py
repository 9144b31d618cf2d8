"""Earlier import path of :func:`headrace.processes.hardware.num_cores`."""

from headrace.processes.hardware import num_cores as num_cores
