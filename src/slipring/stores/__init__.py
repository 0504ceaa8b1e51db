"""Stores: data that outlives a connection, in an SQLite or PostgreSQL database.

Every lookup of a tenant's data is by tenant *and* id: another tenant's id gives the same result as an id that
never existed. When a method that writes returns, the data is as durable as the database can make it. Any
method raises ``Unavailable`` when the database cannot be reached.
"""
