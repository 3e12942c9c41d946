"""What keeps the database small: pruning by rule, an archive of what was pruned, giving space back."""
