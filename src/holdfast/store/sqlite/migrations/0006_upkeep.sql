-- Who prunes at the moment, one at a time, however many workers there are; and what that run has deleted so far. If it
-- dies, the next one finds this here, and writes the event that it owes.
CREATE TABLE {p}upkeep (
    name        TEXT PRIMARY KEY,                   -- 'prune'
    token       TEXT,                               -- of the run; NULL: nobody is at it
    actor       TEXT,
    kind        TEXT,                               -- 'worker', or 'operator', who takes it from a worker
    pid         INTEGER,
    slot        INTEGER,                            -- the byte of the lock file that it holds for as long as it lives
    inode       INTEGER,                            -- of that lock file
    begun_at    INTEGER,
    counts      TEXT,                               -- a JSON object
    note        TEXT,                               -- a JSON object: why, and by which rule
    last_at     INTEGER,                            -- when the last run ended that deleted something
    last_counts TEXT
) WITHOUT ROWID;
