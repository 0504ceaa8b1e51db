"""The workloads: plans of loops, generated identically in every run."""
