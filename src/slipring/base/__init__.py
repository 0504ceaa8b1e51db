"""What every other package may use: errors, spelling, standard streams, progress, and the like."""
