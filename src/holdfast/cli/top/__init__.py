"""`holdfast top`: a live view in the terminal."""
