"""Above search and runs: strings in, strings out."""
