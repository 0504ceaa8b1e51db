"""What loops do: the plans of all workloads, made the same in every run."""
