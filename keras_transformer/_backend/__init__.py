"""Everything that differs by backend, and nothing else."""
