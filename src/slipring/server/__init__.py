"""The server: transports, endpoints, access control and processes. No other layer knows HTTP or sockets."""
