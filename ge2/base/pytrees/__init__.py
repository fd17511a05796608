"""Pytrees: their structure, how they are flattened, and which classes are one."""
