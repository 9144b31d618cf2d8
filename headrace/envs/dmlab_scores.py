"""Random and human scores on the 30 levels of DMLab-30.

Mean returns of whole episodes from Espeholt et al. (2018), "IMPALA", Table B.1, keyed by the
levels' names in DeepMind Lab. Levels with a training and a test version are scored on the test
version. The authors' later code swaps the lasertag scores of small and large; these values follow
the printed table.
"""

from __future__ import annotations

from headrace.envs.atari_scores import Players

SCORES = {
    "rooms_collect_good_objects_test": Players(0.1, 10.0),
    "rooms_exploit_deferred_effects_test": Players(8.5, 85.7),
    "rooms_select_nonmatching_object": Players(0.3, 65.9),
    "rooms_watermaze": Players(4.1, 54.0),
    "rooms_keys_doors_puzzle": Players(4.1, 53.8),
    "language_select_described_object": Players(-0.1, 389.5),
    "language_select_located_object": Players(1.9, 280.7),
    "language_execute_random_task": Players(-5.9, 254.1),
    "language_answer_quantitative_question": Players(-0.3, 184.5),
    "lasertag_one_opponent_large": Players(-0.2, 12.7),
    "lasertag_three_opponents_large": Players(-0.2, 18.6),
    "lasertag_one_opponent_small": Players(-0.1, 18.6),
    "lasertag_three_opponents_small": Players(-0.1, 31.5),
    "natlab_fixed_large_map": Players(2.2, 36.9),
    "natlab_varying_map_regrowth": Players(3.0, 24.4),
    "natlab_varying_map_randomized": Players(7.3, 42.4),
    "skymaze_irreversible_path_hard": Players(0.1, 100.0),
    "skymaze_irreversible_path_varied": Players(14.4, 100.0),
    "psychlab_arbitrary_visuomotor_mapping": Players(0.2, 58.8),
    "psychlab_continuous_recognition": Players(0.2, 58.3),
    "psychlab_sequential_comparison": Players(0.1, 39.5),
    "psychlab_visual_search": Players(0.1, 78.5),
    "explore_object_locations_small": Players(3.6, 74.5),
    "explore_object_locations_large": Players(4.7, 65.7),
    "explore_obstructed_goals_small": Players(6.8, 206.0),
    "explore_obstructed_goals_large": Players(2.6, 119.5),
    "explore_goal_locations_small": Players(7.7, 267.5),
    "explore_goal_locations_large": Players(3.1, 194.5),
    "explore_object_rewards_few": Players(2.1, 77.7),
    "explore_object_rewards_many": Players(2.4, 106.7),
}


def trained_on(level: str) -> str:
    """Return the training level of a scored level: its pair, or the level itself."""
    stem = level.removesuffix("_test")
    return level if stem == level else f"{stem}_train"
