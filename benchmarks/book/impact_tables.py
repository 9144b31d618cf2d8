"""Tables 1 to 4 of IMPACT's paper (Luo et al. 2020, appendix B), and the recipes' values."""

from __future__ import annotations

import math
from typing import Any

from headrace.config import Config

ALGORITHMS = ("impact", "impala", "ppo")  # the columns
Table = dict[str, tuple[Any, Any, Any]]

TABLE_1: Table = {
    "Clip Parameter": (0.3, None, 0.1),
    "Entropy Coeff": (0.01, 0.01, 0.01),
    "Grad Clipping": (10.0, 40.0, None),
    "Discount": (0.99, 0.99, 0.99),
    "Lambda": (0.995, None, 0.995),
    "Learning Rate": (1e-4, 1e-4, 5e-5),
    "Minibatch Buffer Size": (4, None, None),
    "Num SGD Iterations": (2, None, 2),
    "Sample Batch Size": (50, 50, 100),
    "Train Batch Size": (500, 500, 5000),
    "SGD Minibatch Size": (None, None, 500),
    "KL Coeff": (0.0, None, 0.5),
    "KL Target": (None, None, 0.01),  # IMPACT's has no effect, as its coefficient is 0
    "Value Function Coeff": (1.0, 0.5, 1.0),
    "Target-Worker Clipping": (2.0, None, None),
}
TABLE_2: Table = {
    "Clip Parameter": (0.4, None, 0.3),
    "Entropy Coeff": (0.0, 0.0, 0.0),
    "Grad Clipping": (0.5, 0.5, None),
    "Discount": (0.995, 0.995, 0.99),
    "Lambda": (0.995, None, 0.995),
    "Learning Rate": (3e-4, 1.5e-5, 3e-4),
    "Minibatch Buffer Size": (16, None, None),
    "Num SGD Iterations": (20, None, 20),
    "Sample Batch Size": (1024, 1024, 1024),
    "Train Batch Size": (32768, 32768, 163840),
    "SGD Minibatch Size": (None, None, 32768),
    "KL Coeff": (1.0, None, 1.0),
    "KL Target": (0.04, None, 0.01),
    "Value Function Coeff": (1.0, 0.5, 1.0),
    "Target-Worker Clipping": (2.0, None, None),
}
CHEETAH: Table = {  # Table 2's footnotes 1 and 2
    "Num SGD Iterations": (32, None, 32),
    "Value Function Coeff": (0.5, 0.5, 1.0),
}

# Tables 3 and 4: values tried for each setting, one setting at a time.
SEARCHED = {
    ("discrete", "impact"): {
        "clip": (0.1, 0.2, 0.3), "max_grad_norm": (10, 20, 40),
        "learning_rate": (5e-5, 1e-4, 3e-4), "buffer_size": (2, 4, 8, 16), "passes": (1, 2, 4),
        "value_coef": (0.5, 1.0, 2.0),
    },
    ("discrete", "impala"): {
        "max_grad_norm": (2.5, 5, 10, 20, 40, 80),
        "learning_rate": (1e-5, 3e-5, 5e-5, 8e-5, 1e-4, 3e-4, 5e-4),
        "value_coef": (0.25, 0.5, 1.0, 2.0),
    },
    ("discrete", "ppo"): {
        "clip": (0.1, 0.2, 0.3, 0.4), "learning_rate": (5e-5, 1e-4, 3e-4, 5e-4, 8e-4),
        "epochs": (1, 2, 4, 8), "batch_size": (1000, 2500, 5000, 10000),
        "value_coef": (0.25, 0.5, 1.0, 2.0),
    },
    ("continuous", "impact"): {
        "clip": (0.2, 0.3, 0.4), "max_grad_norm": (0.5, 1.0, 5.0),
        "learning_rate": (1e-4, 3e-4, 5e-4), "buffer_size": (4, 8, 16), "passes": (20, 26, 32),
        "kl_target": (0.01, 0.02, 0.04), "value_coef": (0.5, 1.0, 2.0),
    },
    ("continuous", "impala"): {
        "max_grad_norm": (0.1, 0.25, 0.5, 1.0, 5.0, 10.0),
        "learning_rate": (1e-5, 1.5e-5, 3e-5, 5e-5, 8e-5, 1e-4, 3e-4, 5e-4),
        "value_coef": (0.5, 1.0, 2.0),
    },
    ("continuous", "ppo"): {
        "clip": (0.1, 0.2, 0.3, 0.4), "learning_rate": (1e-4, 3e-4, 5e-4),
        "epochs": (20, 26, 32), "batch_size": (65536, 98304, 131072, 163840),
        "kl_target": (0.01, 0.02, 0.04), "value_coef": (0.5, 1.0, 2.0),
    },
}  # fmt: skip
NUMBER_OF_RUNS = {
    "discrete": {"impact": 19, "impala": 17, "ppo": 21},
    "continuous": {"impact": 21, "impala": 17, "ppo": 20},
}


def value(config: Config, name: str) -> Any:
    """Return a setting by the paper's name; None where the paper's table has a dash."""
    algo: Any = config.algo
    kind = config.algo_name
    ppo = kind == "ppo"
    steps: Any = config.batch_size
    rollout: Any = config.rollout_steps
    values = {
        "Clip Parameter": algo.clip,
        "Entropy Coeff": algo.entropy_coef,
        "Grad Clipping": algo.max_grad_norm,
        "Discount": algo.gamma,
        "Lambda": None if kind == "impala" else algo.lam,
        "Learning Rate": algo.learning_rate,
        "Minibatch Buffer Size": getattr(algo, "buffer_size", None),
        "Num SGD Iterations": algo.epochs if ppo else getattr(algo, "passes", None),
        "Sample Batch Size": rollout,
        "Train Batch Size": steps,
        "SGD Minibatch Size": steps / algo.minibatches if ppo else None,
        "KL Coeff": getattr(algo, "kl_coef", None),
        "KL Target": getattr(algo, "kl_target", None),
        "Value Function Coeff": algo.value_coef,
        "Target-Worker Clipping": getattr(algo, "rho", None),
    }
    found = values[name]
    return None if found == math.inf else found


def differences(config: Config, table: Table) -> list[str]:
    """Return the names of settings that differ from their column of the table."""
    column = ALGORITHMS.index(config.algo_name)
    return [name for name, values in table.items() if value(config, name) != values[column]]
