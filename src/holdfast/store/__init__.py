"""Where jobs are kept. The only place with SQL."""
