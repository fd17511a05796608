"""Schedules: steps in order, lifetimes, memory plans, costs."""
