"""Scaling policies and the planner. Empty so far: pools have the endpoints that the configuration names."""
