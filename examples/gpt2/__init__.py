"""GPT-2 in plain NumPy and ge2: `python -m examples.gpt2 --help`, and README.md beside this file."""
