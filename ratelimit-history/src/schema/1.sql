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
    until   INTEGER           -- the end of its ban
) STRICT;
CREATE INDEX episodes_of_source ON episodes (source);
CREATE INDEX episodes_by_end ON episodes (ended);

CREATE TABLE acts (
    id      INTEGER PRIMARY KEY,
    time    INTEGER NOT NULL,
    what    TEXT NOT NULL,
    source  BLOB,
    rule    TEXT,
    by      TEXT,
    reason  TEXT,
    detail  TEXT NOT NULL
) STRICT;
CREATE INDEX acts_of_source ON acts (source);
CREATE INDEX acts_by_time ON acts (time);

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
