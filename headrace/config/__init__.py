"""Settings of a run: ranges, validation, derived values, JSON."""

from headrace.config.run import Config as Config
from headrace.config.run import unknown_setting as unknown_setting
