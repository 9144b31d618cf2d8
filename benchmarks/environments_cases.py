"""Cases of environments.py: environments of other packages, unmodified."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One environment, and the flags of its command."""

    package: str  # package name for pip
    env_id: str
    flags: str = ""  # flags of headrace train, as in a shell
    why: str = ""  # reason for these flags
    steps: int = 4_000


_SHORT, _FILM = (
    "--wrapper 'TimeLimit:{\"max_episode_steps\":200}'",
    "recording a video of 1,000 frames is slow",
)

# --epochs 1 saves time; more epochs learn more from images.
CASES = (
    Case(
        "ale-py",
        "ALE/Pong-v5",
        flags="--engine native --epochs 1",
        why="ALE's own vector environment gives four grey frames of 84×84",
    ),
    Case(
        "ale-py",
        "ALE/Breakout-v5",
        flags=(
            "--engine sync "
            "--env-kwargs '{\"frameskip\":1}' "
            "--wrapper AtariPreprocessing "
            "--wrapper 'FrameStackObservation:{\"stack_size\":4}' "
            "--wrapper 'TimeLimit:{\"max_episode_steps\":500}' "
            "--epochs 1"
        ),
        why="Gymnasium's preprocessing, which skips frames itself; episodes are long",
    ),
    Case(
        "minigrid",
        "MiniGrid-Empty-5x5-v0",
        flags='--wrapper \'FilterObservation:{"filter_keys":["image","direction"]}\'',
        why="the mission is a text, constant in this environment",
    ),
    Case(
        "minigrid",
        "MiniGrid-Fetch-5x5-N2-v0",
        flags="--wrapper minigrid.wrappers:DictObservationSpaceWrapper --text mission",
        why="the mission as tokens by minigrid's own wrapper, for an LSTM",
    ),
    Case(
        "minigrid",
        "BabyAI-GoToObj-v0",
        flags="--wrapper minigrid.wrappers:ImgObsWrapper",
        why="only the image",
    ),
    Case("miniworld", "MiniWorld-OneRoom-v0", flags="--epochs 1", steps=1_500),
    Case("miniworld", "MiniWorld-Hallway-v0", flags="--epochs 1", steps=1_500),
    Case(
        "vizdoom",
        "VizdoomBasic-v1",
        flags=(
            '--env-kwargs \'{"render_mode":"rgb_array","frame_skip":4}\' '
            "--wrapper 'AddRenderObservation:{\"render_only\":true}' "
            "--wrapper 'ResizeObservation:{\"shape\":[60,80]}' "
            "--epochs 1"
        ),
        why="only the screen, smaller; four frames per action",
        steps=1_500,
    ),
    Case("gymnasium-robotics", "FetchReach-v4"),
    Case("gymnasium-robotics", "PointMaze_UMaze-v3"),
    Case("gymnasium-robotics", "AdroitHandDoor-v1"),
    Case("highway-env", "highway-fast-v0", steps=1_000),
    Case("highway-env", "parking-v0", steps=2_000),
    Case("gymnasium[mujoco]", "HalfCheetah-v5", flags=_SHORT, why=_FILM),
    Case("gymnasium[mujoco]", "Humanoid-v5", flags=_SHORT, why=_FILM),
    Case("gymnasium[box2d]", "BipedalWalker-v3"),
    Case("gymnasium[box2d]", "LunarLander-v3"),
    Case("gymnasium[box2d]", "CarRacing-v3", flags="--epochs 1", steps=2_000),
    Case("gymnasium[toy-text]", "FrozenLake-v1"),
    Case("gymnasium[toy-text]", "Taxi-v4"),
    Case("gymnasium[toy-text]", "Blackjack-v1"),
    Case(
        "crafter",
        "crafter:Env",
        flags="--env-kwargs '{\"length\":500}' --epochs 1",
        why="shorter episodes",
    ),
    Case("popgym", "popgym-RepeatPreviousEasy-v0", flags="--core lstm", why="needs memory"),
    Case("popgym", "popgym-BattleshipEasy-v0", flags="--core gru", why="needs memory"),
    Case("memory-gym", "MortarMayhem-Grid-v0", flags="--core lstm --epochs 1", why="needs memory"),
    Case("memory-gym", "SearingSpotlights-v0", flags="--core lstm --epochs 1", why="needs memory"),
    Case("shimmy[dm-control]", "dm_control/cartpole-balance-v0", flags=_SHORT, why=_FILM),
    Case("shimmy[dm-control]", "dm_control/walker-walk-v0", flags=_SHORT, why=_FILM),
    Case("shimmy[bsuite]", "bsuite/catch-v0"),
    Case("minatar", "MinAtar/Breakout-v1"),
    Case("flappy-bird-gymnasium", "FlappyBird-v0"),
    Case("tetris-gymnasium", "tetris_gymnasium.envs.tetris:tetris_gymnasium/Tetris"),
    Case("panda-gym", "PandaReach-v3"),
    Case(
        "metaworld",
        "Meta-World/MT1",
        flags='--env-kwargs \'{"env_name":"reach-v3"}\'',
        why="one task",
    ),
    Case("gym-pusht", "gym_pusht/PushT-v0"),
    Case(
        "mo-gymnasium",
        "mo_gymnasium:deep-sea-treasure-v0",
        flags="--wrapper mo_gymnasium.wrappers:LinearReward",
        why="the sum of two rewards; its weights can't be given in JSON, because it needs an array",
    ),
    Case("PyFlyt", "PyFlyt/QuadX-Hover-v1"),
)
