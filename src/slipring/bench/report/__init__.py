"""A record told: a page with plots, a figure for a README, tables for a terminal. It measures nothing."""
