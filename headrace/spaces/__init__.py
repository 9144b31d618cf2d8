"""Gymnasium spaces: tensor trees, action distributions and JSON."""
