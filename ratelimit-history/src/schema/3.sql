-- Times are milliseconds since 1970. A source is its family (4 or 6), address and prefix length, as bytes.

CREATE TABLE episodes (
    id      INTEGER PRIMARY KEY,
    source  BLOB NOT NULL,
    rule    TEXT NOT NULL,
    "limit" TEXT NOT NULL,
    reason  TEXT NOT NULL,
    would   INTEGER NOT NULL, -- 1 where nothing was dropped
    began   INTEGER NOT NULL,
    seen    INTEGER NOT NULL, -- the last news
    ended   INTEGER,          -- NULL while open
    packets INTEGER NOT NULL,
    bytes   INTEGER NOT NULL,
    peak    INTEGER NOT NULL,
    window  INTEGER NOT NULL, -- of the limit, in milliseconds
    until   INTEGER,          -- the end of its ban
    cause   TEXT,             -- why it ended, as a label; NULL while open
    -- What goes first where the database is too large. NULL while open.
    worth   INTEGER AS (
        CASE WHEN ended IS NULL THEN NULL
             WHEN would = 0 AND until IS NOT NULL THEN 2 -- a ban
             WHEN ended - began >= 60000 THEN 1          -- a refusal of a minute or longer
             ELSE 0 END                                  -- a shorter one
    ) VIRTUAL
) STRICT;
CREATE INDEX episodes_of_source ON episodes (source);
CREATE INDEX episodes_by_end ON episodes (ended);
CREATE INDEX episodes_by_worth ON episodes (worth, ended);

CREATE TABLE acts (
    id      INTEGER PRIMARY KEY,
    time    INTEGER NOT NULL,
    what    TEXT NOT NULL,
    source  BLOB,
    rule    TEXT,
    by      TEXT,
    reason  TEXT,
    detail  TEXT NOT NULL,
    -- 0 what applications charge, which may be much; 1 what a user or the daemon did.
    worth   INTEGER AS (what <> 'charge') VIRTUAL
) STRICT;
CREATE INDEX acts_of_source ON acts (source);
CREATE INDEX acts_by_worth ON acts (worth, time);

CREATE TABLE totals (
    span    INTEGER NOT NULL, -- seconds: 60, 3600 or 86400
    start   INTEGER NOT NULL,
    rule    TEXT NOT NULL,
    reason  TEXT NOT NULL,
    outcome INTEGER NOT NULL, -- 0 admitted, 1 dropped, 2 would have been dropped
    packets INTEGER NOT NULL,
    bytes   INTEGER NOT NULL,
    PRIMARY KEY (span, start, rule, reason, outcome)
) STRICT, WITHOUT ROWID;

-- Times in which events were lost before they came here, or found no room in the queue.
CREATE TABLE losses (
    began  INTEGER NOT NULL PRIMARY KEY,
    ended  INTEGER NOT NULL,
    events INTEGER NOT NULL -- how many were lost
) STRICT;
