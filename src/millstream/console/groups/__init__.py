"""What the pages of groups do: offsets moved, groups deleted."""
