"""Database drivers: SQLite and PostgreSQL behind one interface."""
