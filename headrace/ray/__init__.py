"""Runs actors, learners and ClusterEnv workers on a Ray cluster; the only package that uses Ray.

    connection.py   a connection to a cluster, or to a new one that is started here
                    (``local_cluster.py``, ``agents.py``); ``local_node.py`` watches its node
    fleet.py        actors; ``rollout_queue.py`` carries rollouts, ``actor.py`` is in each process
    learners.py     several learners, which meet in ``store.py``
    cluster_env.py  workers of ClusterEnv
    node.py         ``ray start`` on a machine of a scheduler

Parts below this one look it up by name when a run needs Ray (``processes/ray_package.py``).
"""
