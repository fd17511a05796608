"""The values that a function reads besides its arguments: found, observed at each call, and bound."""
