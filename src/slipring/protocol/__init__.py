"""What travels: items, tools, requests, responses and events. Data only; liberal in, exact out."""
