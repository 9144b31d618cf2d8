"""Jobs of Kubernetes, for KubeRay's operator: the manifest, and what becomes of it."""
