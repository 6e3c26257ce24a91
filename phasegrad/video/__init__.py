"""Films of an agent's episodes."""
