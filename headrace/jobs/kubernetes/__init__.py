"""Kubernetes jobs for KubeRay's operator: manifest and monitoring."""
