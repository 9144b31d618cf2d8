"""All settings of a run, their ranges, what follows from them, JSON."""

from headrace.config.run import Config as Config
from headrace.config.run import unknown_setting as unknown_setting
