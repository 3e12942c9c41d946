"""What stands below the table in results.md: how it was measured."""

NOTES = """\
## How it was measured

- Every figure is a ratio to a floor that was measured in the same run, in turns: floor, ours, ours, floor, and so
  on. The ratio is the median over the rounds of (ours ÷ floor) within a round; the spread is its smallest and
  largest. The rates are medians, so they need not divide to exactly the ratio.
- Files are new, on a disk. Before the clock starts, floor and ours alike write until their log has been started
  anew at least once, so that checkpoints and the reuse of the log are in the figures.
- The body is a JSON object of 79 bytes. FULL flushes the log to the disk at every commit; NORMAL flushes only at
  checkpoints. All figures are with full history (attempts and events) unless `history=False` is said.
- **Floor of send:** plain `sqlite3`, WAL, the same synchronous level, SQLite's defaults otherwise (pages of
  4096 bytes, a checkpoint by itself every 1000 pages); `json.dumps`; per send `BEGIN IMMEDIATE`, an INSERT into a
  jobs table with one index, an INSERT into an events table with an index on the job, `COMMIT`. No checks, no keys,
  no locks between threads, no guard against the WAL-reset bug.
- **Eight threads to one thread:** the floor is ours with one thread, on the same file.
- **Floor of the bulk calls:** a file made by Holdfast, with all its indexes and without its triggers; `json.dumps`
  of every body and one `executemany` of the same columns in one transaction, at the same level. It writes no
  events; ours does.
- **Floor of send + receive + ack:** three bare statements on one table without history, each a transaction of its
  own, in the shape of goqite: INSERT; `UPDATE … WHERE id = (SELECT … ORDER BY priority DESC, id LIMIT 1)
  RETURNING`; DELETE. Ours with history writes four more rows for a message, and keeps them.
- **Depth:** both sides are ours: a file with 1,000 ready messages, and the same beside the crowd; both files stay
  open, and what was taken is sent again between rounds, outside the measured time. Here the ratio is of the time
  that one pair takes, so less is better. The crowds are made by one INSERT … SELECT with the events that belong to
  it; dead ones have no rows in attempts.
- **Import:** wall time of `python -c "import holdfast"` less that of `python -c "pass"`, both started in turns.
- **Long poll:** time from the call of `send` in one process, NORMAL, to the return of `receive(wait=20)` in
  another, with random pauses of 4 to 20 ms between.
"""
