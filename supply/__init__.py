"""What slipring is made of: locked packages, their known vulnerabilities, and the bill of materials."""
