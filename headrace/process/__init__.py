"""Earlier import path of :mod:`headrace.processes`, kept for scripts that count cores."""
