"""Policies that have a name."""

POLICIES = ("ddpg", "rules", "goodput", "fixed")
