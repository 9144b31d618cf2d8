"""Adds a run to TensorBoard's hyperparameter table; runs write their curves themselves."""

from __future__ import annotations

from typing import Any

from headrace.extras import needs
from headrace.integrations import final, flat


class HyperParameters:
    """Callback that adds settings and final metrics of a run to its TensorBoard files.

    The tab HPARAMS then compares runs of one folder by the settings in which they differ.

    Args:
        names: which settings, as ``algo.learning_rate``; None: all.
    """

    dispensable = True

    def __init__(self, names: list[str] | None = None) -> None:
        self._names = names

    def __call__(self, result: Any, trainer: Any) -> None:
        """Do nothing: the run writes its results itself."""

    def end(self, trainer: Any, summary: dict[str, Any] | None) -> None:
        """Write the settings with the final metrics, unless the run failed."""
        if summary is None:
            return
        with needs("HyperParameters", "tensorboard"):
            from torch.utils.tensorboard import SummaryWriter

        settings = flat(trainer.config.to_json())
        chosen = {k: v for k, v in settings.items() if self._names is None or k in self._names}
        with SummaryWriter(str(trainer.run_dir)) as writer:
            writer.add_hparams(
                chosen, final(summary), run_name=".", global_step=summary["env_steps"]
            )
