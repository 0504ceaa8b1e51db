"""The shapes of answers: what a constraint allows, before it is written as a grammar or a structural tag."""
