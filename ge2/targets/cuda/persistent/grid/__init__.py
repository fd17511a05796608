"""What all blocks of a GPU do together in a persistent kernel."""
