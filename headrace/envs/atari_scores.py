"""Scores of random and human players on the 57 Atari games of the literature.

Undiscounted returns of whole games that begin with up to 30 no-ops, at most 30 minutes of play:
Wang et al. (2016), "Dueling Network Architectures for Deep Reinforcement Learning", table of raw
scores from no-op starts; printed again by Bellemare et al. (2017), "A Distributional Perspective on
Reinforcement Learning", Figure 14. IMPALA's Table 4 is normalised by such scores.
"""

from __future__ import annotations

from typing import NamedTuple


class Players(NamedTuple):
    """Random and human scores of one game."""

    random: float
    human: float

    def normalized(self, score: float) -> float:
        """Normalise a score so that 0 is the random player's and 1 the human's (Mnih et al.
        2015).
        """
        return (score - self.random) / (self.human - self.random)


SCORES = {  # keys are the games' names in Gymnasium's ids
    "Alien": Players(227.8, 7127.7),
    "Amidar": Players(5.8, 1719.5),
    "Assault": Players(222.4, 742.0),
    "Asterix": Players(210.0, 8503.3),
    "Asteroids": Players(719.1, 47388.7),
    "Atlantis": Players(12850.0, 29028.1),
    "BankHeist": Players(14.2, 753.1),
    "BattleZone": Players(2360.0, 37187.5),
    "BeamRider": Players(363.9, 16926.5),
    "Berzerk": Players(123.7, 2630.4),
    "Bowling": Players(23.1, 160.7),
    "Boxing": Players(0.1, 12.1),
    "Breakout": Players(1.7, 30.5),
    "Centipede": Players(2090.9, 12017.0),
    "ChopperCommand": Players(811.0, 7387.8),
    "CrazyClimber": Players(10780.5, 35829.4),
    "Defender": Players(2874.5, 18688.9),
    "DemonAttack": Players(152.1, 1971.0),
    "DoubleDunk": Players(-18.6, -16.4),
    "Enduro": Players(0.0, 860.5),
    "FishingDerby": Players(-91.7, -38.7),
    "Freeway": Players(0.0, 29.6),
    "Frostbite": Players(65.2, 4334.7),
    "Gopher": Players(257.6, 2412.5),
    "Gravitar": Players(173.0, 3351.4),
    "Hero": Players(1027.0, 30826.4),
    "IceHockey": Players(-11.2, 0.9),
    "Jamesbond": Players(29.0, 302.8),
    "Kangaroo": Players(52.0, 3035.0),
    "Krull": Players(1598.0, 2665.5),
    "KungFuMaster": Players(258.5, 22736.3),
    "MontezumaRevenge": Players(0.0, 4753.3),
    "MsPacman": Players(307.3, 6951.6),
    "NameThisGame": Players(2292.3, 8049.0),
    "Phoenix": Players(761.4, 7242.6),
    "Pitfall": Players(-229.4, 6463.7),
    "Pong": Players(-20.7, 14.6),
    "PrivateEye": Players(24.9, 69571.3),
    "Qbert": Players(163.9, 13455.0),
    "Riverraid": Players(1338.5, 17118.0),
    "RoadRunner": Players(11.5, 7845.0),
    "Robotank": Players(2.2, 11.9),
    "Seaquest": Players(68.4, 42054.7),
    "Skiing": Players(-17098.1, -4336.9),
    "Solaris": Players(1236.3, 12326.7),
    "SpaceInvaders": Players(148.0, 1668.7),
    "StarGunner": Players(664.0, 10250.0),
    "Surround": Players(-10.0, 6.5),
    "Tennis": Players(-23.8, -8.3),
    "TimePilot": Players(3568.0, 5229.2),
    "Tutankham": Players(11.4, 167.6),
    "UpNDown": Players(533.4, 11693.2),
    "Venture": Players(0.0, 1187.5),
    "VideoPinball": Players(16256.9, 17667.9),
    "WizardOfWor": Players(563.5, 4756.5),
    "YarsRevenge": Players(3092.9, 54576.9),
    "Zaxxon": Players(32.5, 9173.3),
}
