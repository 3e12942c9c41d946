"""What stands below the table in results.md: how it was measured."""

NOTES = """\
## How it was measured

- Every figure is a ratio to a floor that was measured in the same run, in turns: floor, ours, ours, floor, and so
  on. The ratio is the median over the rounds of (ours ÷ floor) within a round; the spread is its smallest and
  largest. The rates are medians, so they need not divide to exactly the ratio.
- Files are new, on a disk. Before the clock starts, floor and ours alike write until their log has been started
  anew at least once, so that checkpoints and the reuse of the log are in the figures. This does not hold for the
  worker: its files are filled and closed, and what it writes from there on is measured.
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
- **Worker, one process:** `app.worker(until_idle=True).run()` in this process on a new file of 20,000 jobs whose
  handlers do nothing, from its start to its end. That it enlists, sees that nothing is left, and signs off is in
  the time: some 30 ms. **Its floor:** the same file with all triggers, so with the same attempts and events, and a
  plain `sqlite3` connection at NORMAL in a loop: `BEGIN IMMEDIATE`; settle the last 100 by the worker's own
  statement; claim the next 100 by an `UPDATE … RETURNING` of one queue and one task; `COMMIT`. It calls no handler,
  looks for no other queue, no due job and no ended lease, and has SQLite's own checkpoints and cache.
- **To huey:** the floor is huey's consumer with one worker thread on its SQLite storage, here only where huey is
  installed; see peers.md for how.
- **Four processes to one:** workers that wait on a file of their own, one on the one file and four on the other.
  The queue is paused, filled and resumed; the time is from the resuming to the end of the last handler. A share is
  how many of the jobs one process did. The ratio of shares is the median over the rounds.
- **Jobs behind others, jobs in many queues:** both sides are ours, and the floor is as many jobs in one queue. The
  times are per job. The unknown jobs are older, in the same queue, and stay there; in many queues the jobs were
  dealt out in turn. A claim is the store's `exchange` of ten settled for ten claimed, as a worker with slow jobs
  does it; a drain is the worker with its batches of up to 200.
- **Chains:** both sides are ours, with the enqueue in the time, since of a chain only the first job is enqueued.
  Many chains at once are settled in batches, as plain jobs are. One chain alone is not: there the floor is a job
  whose handler enqueues the next, which is on disk before it goes on. The times are per job.
- **Release:** one external job, and jobs that wait for it; the time of `app.jobs.complete`, at FULL, which makes all
  of them ready in the same transaction.
- **Enqueue to handler:** both processes at NORMAL, single jobs with random pauses of 5 to 50 ms. The clock starts
  when `enqueue` has returned, and stops in the first line of the handler; it may stop before it starts, and that
  counts as it is. The line without a target has it start before `enqueue` is called.
- **Kill -9:** two worker processes, and a job that does not end. Its worker is killed 100 to 400 ms after it has
  begun; the time is from right before the kill to the first line of the handler in the other worker.
- **Idle, memory:** `python -m holdfast worker` with an app of one task. Processor time is user and system time of
  the process, which the kernel counts in steps of 10 ms. Memory is VmRSS, in millions of bytes. The jobs come
  25,000 at a time from another process. No growth is taken to mean less than 1 MB.
"""
