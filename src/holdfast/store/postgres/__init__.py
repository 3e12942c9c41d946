"""The store on PostgreSQL, with psycopg 3."""
