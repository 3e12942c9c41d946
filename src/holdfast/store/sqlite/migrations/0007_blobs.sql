-- Large payloads and results are kept elsewhere, by the SHA-256 of what they are; args, result hold 'null' then.

ALTER TABLE {p}jobs ADD COLUMN args_blob TEXT
    CHECK (args_blob IS NULL OR (length(args_blob) = 64 AND args_blob NOT GLOB '*[^0-9a-f]*'));
ALTER TABLE {p}jobs ADD COLUMN result_blob TEXT
    CHECK (result_blob IS NULL OR (length(result_blob) = 64 AND result_blob NOT GLOB '*[^0-9a-f]*'));
CREATE INDEX {p}jobs_args_blob   ON {p}jobs (args_blob) WHERE args_blob IS NOT NULL;
CREATE INDEX {p}jobs_result_blob ON {p}jobs (result_blob) WHERE result_blob IS NOT NULL;

-- What a job let go of, or was found without any. It is noted first, so that what let it go is on the disk, and then
-- deleted by whoever collects, while nobody else can write, if no job refers to it. Its row stays for a while: who has
-- put the same just before, and comes to write the job only now, sees by it that this may be gone.
CREATE TABLE {p}unused_blobs (
    name     TEXT PRIMARY KEY,
    noted_at INTEGER,
    gone_at  INTEGER                                -- when it was deleted; NULL: not yet
) WITHOUT ROWID;
CREATE INDEX {p}unused_blobs_there ON {p}unused_blobs (gone_at, noted_at);

CREATE TRIGGER {p}blobs_let_go AFTER DELETE ON {p}jobs WHEN OLD.args_blob IS NOT NULL OR OLD.result_blob IS NOT NULL
BEGIN
    INSERT INTO {p}unused_blobs (name) SELECT OLD.args_blob WHERE OLD.args_blob IS NOT NULL
    ON CONFLICT (name) DO UPDATE SET noted_at = NULL, gone_at = NULL;
    INSERT INTO {p}unused_blobs (name) SELECT OLD.result_blob WHERE OLD.result_blob IS NOT NULL
    ON CONFLICT (name) DO UPDATE SET noted_at = NULL, gone_at = NULL;
END;

CREATE TRIGGER {p}blobs_replaced AFTER UPDATE OF args_blob, result_blob ON {p}jobs
WHEN OLD.args_blob IS NOT NEW.args_blob OR OLD.result_blob IS NOT NEW.result_blob
BEGIN
    INSERT INTO {p}unused_blobs (name) SELECT OLD.args_blob
    WHERE OLD.args_blob IS NOT NULL AND OLD.args_blob IS NOT NEW.args_blob
    ON CONFLICT (name) DO UPDATE SET noted_at = NULL, gone_at = NULL;
    INSERT INTO {p}unused_blobs (name) SELECT OLD.result_blob
    WHERE OLD.result_blob IS NOT NULL AND OLD.result_blob IS NOT NEW.result_blob
    ON CONFLICT (name) DO UPDATE SET noted_at = NULL, gone_at = NULL;
END;
