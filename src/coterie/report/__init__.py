"""What a run directory says, as a terminal table, as sentences and as one HTML file."""
